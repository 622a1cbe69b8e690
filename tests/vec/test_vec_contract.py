"""The contract of vec/base.py over every kind of environments.

Other files test the rest: test_native.py, test_gym.py, test_puffer.py, test_normalize.py.
"""

from collections.abc import Callable
from typing import Any

import gym_walk
import numpy as np
import pairs
import pytest
from native_envs import folder_of, parameters
from stepping import (
    copied,
    filled,
    group_of,
    gym_vec,
    played,
    puffer_vec,
    same,
    send,
    started,
    step,
    whole_rollout,
)

from puffer_mlx import vec as vectorised
from puffer_mlx.config import Config, Vec
from puffer_mlx.vec.base import TERMINATED, TRUNCATED, CollectsRollouts, ScoredVec
from puffer_mlx.vec.gym.installed import has_vectorised_versions
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.normalize import Normalized
from puffer_mlx.vec.python_vec import PythonVec
from puffer_mlx.vec.rows import random_actions

N = 12
NORMALIZED = "normalized gym vector"
CARTPOLE = {"name": "CartPole-v1", "constructor": "CartPole-v1"}
WALK = {"name": "walk", "constructor": gym_walk.Walk, "env": {"size": 2, "limit": 5}}


def native(name: str, **keywords: Any) -> NativeVec:
    return NativeVec(folder_of(name), env=parameters(name), total_agents=N, **keywords)


def gym(**keywords: Any) -> PythonVec:
    return gym_vec(**{"total_agents": N, **keywords})


def factory(**keywords: Any) -> ScoredVec:
    config = Config("gym_walk:Walk", vec=Vec(total_agents=N, **keywords))
    config.env = {"masked": True}
    config.train.bootstrap_truncated = True
    return vectorised.make(config, 2)


KINDS: dict[str, Callable[..., Any]] = {
    "native, many agents, masks": lambda **k: native("relay", **k),
    "gym async final_observations": lambda **k: gym(
        **WALK, backend="async", final_observations=True, **k
    ),
    "module:factory, masks, final_observations": factory,
    "PufferEnv async": lambda **k: puffer_vec(
        pairs.Pairs, name="pairs", total_agents=N, backend="async", num_threads=2, **k
    ),
    NORMALIZED: lambda **k: Normalized(
        gym(**CARTPOLE, backend="vector" if has_vectorised_versions() else "sync", **k),
        *(True, True, 0.9),
    ),
}


@pytest.fixture(params=KINDS, scope="module")
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def vec(kind: str):
    """Yield environments of one kind in two groups, and close them after the test."""
    with KINDS[kind](num_buffers=2) as made:
        yield made


@pytest.fixture(scope="module")
def pair(kind: str):
    """Yield two equal sets of environments of one kind, and close them after the test."""
    with KINDS[kind](num_buffers=2) as made, KINDS[kind](num_buffers=2) as twin:
        yield made, twin


def actions_of(vec: ScoredVec, rng: np.random.Generator) -> np.ndarray:
    return random_actions(vec, vec.num_agents, rng)


def test_properties_describe_the_rows_that_a_reset_writes(vec):
    assert (vec.num_agents, vec.num_groups) == (N, 2)
    assert N % vec.num_environments == 0 and vec.unused == []
    assert vec.description and "\n" not in vec.description
    assert vec.spec.mask_size in (0, vec.spec.action.logits)
    played(vec, 1)
    before = vec.busy_seconds()
    played(vec, 1)
    assert vec.busy_seconds() > before > 0
    rows = filled(vec, 77)
    vec.reset(rows)
    assert not rows.rewards.any() and not rows.terminals.any()
    assert not (rows.observations == 77).any()
    assert rows.final_observations is None or not rows.final_observations.any()
    assert (rows.final_observations is None) != vec.final_observations
    assert rows.masks is None or (rows.masks < 2).all()
    assert isinstance(vec, CollectsRollouts)


def test_episodes_end_as_rows_say(vec):
    last, ends = np.zeros(N), 0
    for rows in played(vec, 120)[1:]:
        assert np.isin(rows.terminals, (0, 1)).all()
        ends += rows.terminals.sum()
        if rows.final_observations is not None:
            assert np.isin(rows.final_observations, (0, TERMINATED, TRUNCATED)).all()
            np.testing.assert_array_equal(rows.terminals, last != 0)
            assert not rows.rewards[last != 0].any()
            assert not rows.final_observations[last != 0].any()
            if rows.masks is not None:
                assert rows.masks[rows.final_observations != 0].all()
            last = rows.final_observations
    assert ends > 1


def test_logs_count_what_rows_show(vec, kind: str):
    rows, rng = started(vec), np.random.default_rng(1)
    vec.log()
    returns, lengths = np.zeros(N), np.zeros(N)
    ended, records = [], []
    for _ in range(80):
        first = rows.final_observations is not None and rows.final_observations.copy() != 0
        step(vec, rows, actions_of(vec, rng))
        returns += rows.rewards
        lengths += ~np.broadcast_to(first, N)
        over = np.flatnonzero(
            rows.terminals if rows.final_observations is None else rows.final_observations
        )
        ended += zip(lengths[over], returns[over], strict=True)
        returns[over] = lengths[over] = 0
        records += vec.episodes()
    assert all(0 <= record["env"] < vec.num_environments for record in records)
    if vec.num_environments == N:  # an agent each
        assert all(record["n"] == 1 for record in records)
        found = sorted((each["episode_length"], each["episode_return"]) for each in records)
        compared = 1 if kind == NORMALIZED else 2  # logs are of the rewards as they were
        expected = np.array(sorted(ended))[:, :compared]
        np.testing.assert_allclose(np.array(found)[:, :compared], expected, rtol=1e-5)
    assert vec.log() == {}
    while not (log := vec.log()):
        step(vec, rows, actions_of(vec, rng))
    assert log["n"] >= 1 and all(np.isfinite(list(log.values()))) and vec.log() == {}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != NORMALIZED], indirect=True)
def test_group_steps_alone(pair):
    """Statistics of normalization depend on the order of groups."""
    vec, twin = pair
    rows, other, rng = started(vec), started(twin), np.random.default_rng(2)
    for _ in range(4):
        history = [actions_of(vec, rng) for _ in range(3)]
        before = copied(rows.select(group_of(vec, 0)))
        for group in (1, 0):
            for actions in history:
                mine = actions.copy()
                send(vec, rows, mine, group)
                np.testing.assert_array_equal(mine, actions)
                mine.fill(0)  # a step uses its own copy
                vec.wait(group)
            if group:
                same(rows.select(group_of(vec, 0)), before)
        for actions in history:
            step(twin, other, actions)
        same(rows, other)


def test_whole_rollout_equals_steps(pair, kind: str):
    vec, twin = pair  # normalized: statistics depend on the order of the groups
    whole_rollout(vec, twin if kind != NORMALIZED else None, steps=15, seed=6)


def test_wrong_group_or_arrays_are_refused(vec):
    rows, actions = started(vec), np.zeros((N, vec.spec.action.heads), np.float32)
    half, mine = rows.select(slice(0, N // 2)), actions[: N // 2]
    with pytest.raises(IndexError, match=r"group 2, expected 0 to 1"):
        vec.send(2, mine, half)
    with pytest.raises(ValueError, match=r"actions: expected .*float32"):
        vec.send(0, actions, half)
    with pytest.raises(ValueError, match="float64"):
        vec.send(0, mine, half._replace(rewards=np.zeros(N // 2)))
    send(vec, rows, actions, 0)
    if not isinstance(vec, NativeVec):  # whose step may be complete: see test_native.py
        with pytest.raises(RuntimeError, match="group 0 is stepping already"):
            send(vec, rows, actions, 0)
    vec.reset(rows)  # waits for it
    step(vec, rows, actions)


def test_closed_one_refuses_everything(kind: str):
    vec = KINDS[kind](num_buffers=2)
    rows, actions = started(vec), np.zeros((N, vec.spec.action.heads), np.float32)
    send(vec, rows, actions, 0)
    vec.close()
    vec.close()
    for use in (lambda: send(vec, rows, actions, 0), lambda: vec.wait(0), lambda: vec.reset(rows)):
        with pytest.raises(RuntimeError, match="closed"):
            use()
