"""PufferLib 3.x's Python environments: how they are recognized, their rows and errors.

``tests/envs/python`` has imitations.
"""

import functools
from typing import Any

import emulated
import numpy as np
import pairs
import pytest
from stepping import alike, played, puffer_vec, started, step

from puffer_mlx.errors import UserError
from puffer_mlx.vec.puffer import is_puffer_env

Counting, Duel, Pairs, single = emulated.Counting, emulated.Duel, pairs.Pairs, pairs.single


def make(factory: Any = Pairs, agents=8, **keywords):
    return puffer_vec(factory, **{"name": "pairs", "total_agents": agents, "seed": 5, **keywords})


def right(rows, signs=3):
    """Return the actions (n, 2) that the environment ``Pairs`` rewards."""
    agent = rows.observations[:, signs:].argmax(1)
    return np.stack([(rows.observations[:, :signs].argmax(1) + agent) % signs, agent], 1).astype(
        np.float32
    )


# ---- which are ----------------------------------------------------------------------------------


def test_classes_functions_and_instances_are_recognized():
    class PufferEnv:
        pass

    class Inherits(PufferEnv):
        def __init__(self, **keywords):
            pass

    for found in (Pairs, single, Counting, Inherits, Pairs(), functools.partial(Pairs, signs=4)):
        assert is_puffer_env(found), found
    for found in (dict, puffer_vec, lambda **keywords: None, 3, "buf", np.zeros(3)):
        assert not is_puffer_env(found), found


# ---- rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "groups"), [("vector", 1), ("async", 2)])
def test_rows_are_those_the_environment_writes(backend, groups):
    with make(num_buffers=groups, backend=backend, num_threads=2) as vec:
        rows = started(vec)
        assert not rows.rewards.any() and not rows.terminals.any()
        for t in range(1, 17):
            actions = right(rows)
            actions[0, 0] = (actions[0, 0] + 1) % 3  # wrong
            step(vec, rows, actions)
            assert rows.rewards.tolist() == [0.5] + 7 * [1]
            assert rows.terminals.tolist() == 8 * [t % 8 == 0]  # of both kinds
            assert (rows.observations.sum(1) == 2).all()


def test_groups_processes_and_own_arrays_do_not_change_rows():
    def local(buf=None, seed=0):  # reaches processes, too
        return Pairs(1, buf=buf, seed=seed)

    def history(**keywords):
        with make(**keywords) as vec:
            return played(vec, 20)

    expected = history(factory=single, backend="sync")
    assert alike(expected, history(factory=single, backend="sync", num_buffers=2))
    assert alike(expected, history(factory=local, backend="async", num_buffers=2, num_threads=4))
    assert alike(history(), history(env={"fault": "own arrays"}))  # which are copied
    moved = history(factory=single, backend="sync", seed=6)  # begins with the second of seed 5
    np.testing.assert_array_equal(expected[0].observations[2:], moved[0].observations[:-2])


# ---- how many, and where -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "description", "environments"),
    [
        ({"num_buffers": 2}, "vector: 2 instances; it takes num_envs", 8),
        ({"num_buffers": 2, "backend": "async", "num_threads": 4}, "async: 4 instances in 4", 8),
        ({"factory": single, "agents": 2}, "sync: 1 instance; there is only one", 1),
    ],
)
def test_backend_and_number_of_instances_follow_the_settings(keywords, description, environments):
    with make(**{"agents": 16, **keywords}) as vec:
        assert vec.description.startswith(description)
        assert vec.num_environments == environments


@pytest.mark.parametrize(
    ("keywords", "message", "hint"),
    [
        ({"agents": 7}, "7 is not a multiple of vec.num_buffers 1 times the 2 agents", "6 or 8"),
        ({"factory": single, "backend": "vector"}, "it takes no num_envs", "sync or async"),
        ({"env": {"sings": 3}}, "takes no env.sings", "num_envs, signs, length"),
        ({"env": {"seed": 3}}, "env.seed can't be set", "vec.seed"),
        ({"factory": Pairs()}, "it is an environment object", "class"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(keywords, message: str, hint: str):
    with pytest.raises(UserError) as caught:
        make(**keywords)
    assert message in caught.value.message and hint in caught.value.hint


# ---- episodes ------------------------------------------------------------------------------------


def rightly(vec, steps):
    rows = started(vec)
    for _ in range(steps):
        step(vec, rows, right(rows))


def returns(records, *more, env=None):
    """Return (return, length, ...) of each recorded episode, perhaps of one environment only."""
    keys = ("episode_return", "episode_length", *more)
    return [tuple(r[key] for key in keys) for r in records if env in (None, r["env"])]


def test_log_has_episodes_or_the_report_of_the_environment():
    with make(agents=4, num_buffers=2, env={"length": 5}) as vec:
        rightly(vec, 12)
        assert returns(vec.episodes(), "env") == 4 * [(5, 5, 0)] + 4 * [(5, 5, 1)]
    with make(agents=4, env={"report": 8}) as vec:  # what the environment reports goes first
        rightly(vec, 8)
        assert vec.log() == {"episode_return": 8, "episode_length": 8, "score": 1, "n": 4}


def test_rewards_of_absent_agents_do_not_count():
    with make(agents=2, env={"leaves": True}) as vec:
        rightly(vec, 16)
        assert returns(vec.episodes()) == [(4, 4), (8, 8), (4, 4), (8, 8)]


def test_emulated_environments_are_reset_within_the_step():
    with make(Counting, 2, backend="sync") as vec:
        spec, rows = vec.spec, started(vec)
        assert (spec.observation_size, spec.observation_dtype, spec.action.sizes) == (
            *(8, np.float32),
            (2,),
        )
        assert rows.observations[0].tolist() == [1, 0, 0, 1, 0, 7, 8, 9]
        seen = [step(vec, rows) for _ in range(6)]
        assert [row.rewards[1] for row in seen] == [1, 2, 2, 3, 3, 3]
        assert [row.terminals[1] for row in seen] == [1, 0, 1, 0, 0, 1]
        shown = [[2, 0], [2, 1], [3, 0], [3, 1], [3, 2], [4, 0]]
        assert [row.observations[1, :2].tolist() for row in seen] == shown
        assert returns(vec.episodes(), "score", env=1) == [(1, 1, 10), (4, 2, 20), (9, 3, 30)]


def test_agents_of_emulated_environments_end_one_by_one():
    with make(Duel, 4, backend="async", num_threads=2) as vec:
        seen = played(vec, 8)[1:]
        records = returns(vec.episodes(), "x", env=1)
    assert [row.terminals[2:].tolist() for row in seen] == 2 * [[0, 0], [0, 1], [0, 1], [1, 1]]
    assert [row.rewards[2:].tolist() for row in seen] == 2 * [[1, 10], [1, 10], [1, 0], [1, 0]]
    assert records == 2 * [(20, 2, 5), (4, 4, 1)]
    with make(Duel, 2, backend="sync", env={"at_once": True}) as vec:  # one vanishes
        played(vec, 8)
        assert returns(vec.episodes()) == 2 * [(10, 2), (4, 4)]


# ---- what goes wrong ----------------------------------------------------------------------------


def failing(fault: str):
    """Return a factory of PufferLib environments, of which the one with seed 6 fails."""

    def factory(buf=None, seed=0):
        return single(fault=fault if seed == 6 else "", buf=buf, seed=seed)

    return factory


@pytest.mark.parametrize(
    ("fault", "backend", "message"),
    [
        ("reset", "sync", r" failed in reset: RuntimeError: it can't be reset\n.*pairs\.py"),
        ("exit", "async", r" failed in step: SystemExit: 0\n.*pairs\.py"),
        ("nan", "async", ", agent 1, returned a reward of nan"),
        ("die", "async", " died: .* exit code 3"),  # three instances are in its process
    ],
)
def test_failure_names_environment_and_seed(fault: str, backend: str, message: str):
    with (
        make(failing(fault), 6, backend=backend) as vec,
        pytest.raises(UserError, match=rf"^pairs: environment 1 \(seed 6\){message}"),
    ):
        played(vec, 3)


def test_environments_of_an_instance_have_its_seed_in_messages():
    said = r"environment 1 \(seed 5\), agent 1, returned a reward"
    with (
        make(num_buffers=2, env={"fault": "nan"}) as vec,
        pytest.raises(UserError, match=said),
    ):
        played(vec, 3)


def test_render_and_close_reach_the_environment():
    instances = []

    def factory(buf=None, seed=0):
        instances.append(Pairs(1, buf=buf, seed=seed))
        return instances[-1]

    with make(factory, 4, backend="sync") as vec:
        step(vec, started(vec))
        np.testing.assert_array_equal(vec.render(), np.ones((2, 3, 3)))
        assert vec.busy_seconds() > 0
    assert all(env.closed for env in instances)
