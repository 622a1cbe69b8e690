"""Gymnasium's environments: rows, the choice of a backend, and errors of construction."""

import sys
from typing import Any

import gym_walk
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from stepping import alike, gym_vec, played, started, step

from puffer_mlx.errors import UserError
from puffer_mlx.vec import backend_choice
from puffer_mlx.vec.base import TERMINATED, TRUNCATED
from puffer_mlx.vec.gym import installed
from puffer_mlx.vec.gym.make import GymFactory
from puffer_mlx.vec.python_vec import PythonVec

Walk, Walks = gym_walk.Walk, gym_walk.Walks

RIGHT, STAY = 2, 1  # the numbers of choices
CARTPOLE = "CartPole-v1"
NEEDS_1_1 = pytest.mark.skipif(
    not installed.has_vectorised_versions(), reason="needs Gymnasium 1.1"
)


def make(factory: Any = Walk, agents=6, **keywords) -> PythonVec:
    return gym_vec(
        factory, **{"name": "walk", "total_agents": agents, "backend": "sync", **keywords}
    )


def refused(said: str, *arguments, **keywords) -> None:
    with pytest.raises(UserError, match=said):
        make(*arguments, **keywords)


# ---- Rows ----------------------------------------------------------------------------------------


def test_rows_without_final_observations_show_first_observation_of_next_episode():
    with make(agents=3, env={"size": 2, "limit": 4}) as vec:
        rows = started(vec)
        assert not vec.final_observations and rows.final_observations is None
        assert rows.observations.dtype == np.float32
        assert rows.observations.tolist() == [[-1, 0, 1], [0, 0, 1], [1, 0, 1]]
        assert not rows.rewards.any() and not rows.terminals.any()
        seen = [step(vec, rows, RIGHT) for _ in range(4)]
        # starting at 1: the end at once, and again; from 0 after 2 steps; from -1 after 3
        assert [list(row.terminals) for row in seen] == [[0, 0, 1], [0, 1, 1], [1, 0, 1], [0, 1, 1]]
        assert [list(row.rewards) for row in seen] == [[0, 1, 2], [1, 2, 2], [2, 1, 2], [0, 2, 2]]
        assert seen[0].observations.tolist() == [[0, 1, 1], [1, 1, 1], [1, 0, 2]]
        assert seen[2].observations.tolist() == [[-1, 0, 2], [1, 1, 2], [1, 0, 4]]


def test_rows_with_final_observations_show_last_observation():
    """The last observation has its row, which says why the episode ended."""
    with make(agents=2, final_observations=True, env={"size": 2, "limit": 2}) as vec:
        rows = started(vec)
        assert vec.final_observations and not np.any(rows.final_observations)
        seen = [step(vec, rows, [move, RIGHT]) for move in (STAY, STAY, RIGHT)]
        # agent 1 reaches the end when its time is out: the end counts
        ends = [[0, 0], [TRUNCATED, TERMINATED], [0, 0]]
        assert [np.array(row.final_observations).tolist() for row in seen] == ends
        assert [row.terminals.tolist() for row in seen] == [[0, 0], [0, 0], [1, 1]]
        assert [row.rewards.tolist() for row in seen] == [[-1, 1], [-1, 2], [0, 0]]
        assert seen[1].observations.tolist() == [[-1, 2, 1], [2, 2, 1]]
        assert seen[2].observations.tolist() == [[-1, 0, 2], [0, 0, 2]]  # the action meant nothing


@NEEDS_1_1
def test_rows_of_vectorized_forms_of_both_reset_modes():
    """With SameStep there are no last observations."""
    env = {"size": 2, "limit": 2}
    with make(Walks, 2, backend="vector", final_observations=True, env=env) as vec:
        rows = started(vec)
        seen = [step(vec, rows, move) for move in ([STAY, 0], [STAY, RIGHT], [RIGHT, RIGHT])]
        assert [np.array(row.final_observations).tolist() for row in seen] == [
            [0, 1],
            [2, 0],
            [0, 0],
        ]
        assert [row.terminals.tolist() for row in seen] == [[0, 0], [0, 1], [1, 0]]
    env = {"mode": "SameStep", "size": 2}
    with make(Walks, 2, backend="vector", env=env, final_observations=True) as vec:
        assert not vec.final_observations
        rows = started(vec)
        assert [step(vec, rows, [0, STAY]).terminals.tolist() for _ in range(2)] == [[1, 0]] * 2
        expected = {"episode_return": -2, "episode_length": 1, "score": -2, "final_position": -2}
        assert vec.episodes() == [expected | {"env": 0, "n": 1}] * 2


def test_backends_and_groups_give_equal_rows():
    env = {"size": 2, "masked": True, "nested": True}

    def history(**more):
        with make(Walk, 4, **{"seed": 7, "final_observations": True, "env": env, **more}) as vec:
            return played(vec, 60)

    expected = history()
    assert sum(row.terminals.sum() for row in expected) > 3
    for form in ({"num_buffers": 2}, {"backend": "async", "num_buffers": 2}):
        assert alike(expected, history(**form))
    assert not alike(expected, history(seed=8))


def test_seeds_are_those_of_sync_vector_env():
    envs = SyncVectorEnv([lambda: gymnasium.make(CARTPOLE)] * 3)
    expected, _ = envs.reset(seed=2**31)
    envs.close()
    with make(CARTPOLE, 3, seed=2**31) as vec:
        np.testing.assert_array_equal(started(vec).observations, expected)
        assert not (started(vec).observations == expected).all()  # the next episode


def test_masks_are_those_of_infos():
    with make(agents=3, env={"masked": True, "size": 2, "limit": 4}) as vec:
        rows = started(vec)
        assert np.array(rows.masks).tolist() == [[0, 1, 1], [0, 1, 1], [1, 1, 1]]
        seen = [step(vec, rows, RIGHT).masks, step(vec, rows, [0, RIGHT, STAY]).masks]
        assert [np.array(masks).tolist() for masks in seen] == [
            [[0, 1, 1], [1, 1, 1], [1, 1, 1]],
            [[0, 1, 1], [0, 1, 1], [1, 1, 1]],
        ]


def test_masks_of_several_heads_are_concatenated():
    """``MultiDiscrete.sample`` takes the same form. The second head leaves no choice."""

    class PerHead(Walk):
        def __init__(self):
            super().__init__()
            self.action_space = gymnasium.spaces.MultiDiscrete([3, 1, 2])

        def _info(self):
            return {"action_mask": (np.array([1, 0, 1]), np.array([1]), np.array([0, 1]))}

    with make(PerHead, 2) as vec:
        assert vec.spec.action.sizes == (3, 2)
        assert np.array(started(vec).masks).tolist() == [[1, 0, 1, 0, 1]] * 2


# ---- Forms ---------------------------------------------------------------------------------------


@NEEDS_1_1
def test_auto_backend_prefers_vectorized_form():
    with make(CARTPOLE, 4, backend="auto") as vec:
        assert vec.description == "vector: CartPoleVectorEnv, its vectorised version"


@pytest.mark.parametrize(
    ("round_trips", "agents", "cores", "expected"),
    [
        (100, 8, 4, "async: 8 processes; a step takes "),
        (1, 2, 4, "sync: a step takes "),  # two processes save half of it
        (3, 2, 4, "async: 2 processes"),
        (100, 8, 1, "sync: there is one core"),
        (100, 1, 4, "sync: there is only one"),
    ],
)
def test_auto_backend_is_async_for_slow_steps(round_trips, agents, cores, expected, monkeypatch):
    seconds = round_trips * backend_choice.ROUND_TRIP_SECONDS
    monkeypatch.setattr(backend_choice, "step_time", lambda *_: seconds)
    monkeypatch.setattr(backend_choice, "cores", lambda: cores)
    factory = GymFactory("walk", Walk)
    chosen = backend_choice.choose_backend(factory, agents, 1, "auto", 1, 0)
    assert chosen.description.startswith(expected) and "\n" not in chosen.description


@NEEDS_1_1
@pytest.mark.parametrize(
    ("factory", "env", "message"),
    [
        ("Pendulum-v1", {}, "Pendulum-v1 has no vectorised version"),
        (Walks, {"mode": "Disabled"}, r"\"autoreset_mode\"\] is Disabled"),
        (lambda num_envs: Walks(3), {}, "with num_envs=1 its constructor made a Walks of 3"),
    ],
)
def test_missing_vectorized_form_is_reported(factory, env: dict, message: str):
    refused(message, factory, 2, backend="vector", env=env)


# ---- Making --------------------------------------------------------------------------------------


class Bare:
    def reset(self): ...

    def step(self, action): ...


OldEnv = type("Old", (Bare,), {"__module__": "gym.core"})


def without_space():
    made = Walk()
    del made.observation_space
    return made


def vast():
    """Return an environment whose observation bounds would exceed any memory."""
    made, box, shape = Walk(), gymnasium.spaces.Box(-1, 1, (1,)), (10**13,)
    box._shape = shape
    box.low, box.high = (np.broadcast_to(bound, shape) for bound in (box.low, box.high))
    made.observation_space = box
    return made


@pytest.mark.parametrize(
    ("factory", "env", "message"),
    [
        (Bare, {}, r"expected a gymnasium\.Env\n.*derive it from gymnasium"),
        (type("Mine", (OldEnv,), {}), {}, "gymnasium as gym"),
        (without_space, {}, r"walk: it has no observation_space\n.*gymnasium\.spaces"),
        (vast, {}, r"walk: observations of shape \(10000000000000,\) .* 80,000 GB"),
        ("CartPol-v1", {}, r"walk: .*CartPol.*Did you mean: `CartPole`"),
        (Walk, {"sise": 3}, r"it takes no env\.sise\n.*it takes size, limit, masked"),
    ],
)
def test_environment_that_can_not_be_made_is_reported(factory, env: dict, message: str):
    refused(message, factory, 2, env=env)


def test_groups_rendering_and_missing_gymnasium_are_reported(monkeypatch):
    refused(r"7 is not a multiple of vec\.num_buffers 2\n", agents=7, num_buffers=2)
    refused("it takes no render_mode", lambda: Walk(), render=True)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    refused(r"pip install 'puffer-mlx\[gym\]'", CARTPOLE)


def test_ids_with_and_without_version_and_module_are_found():
    gymnasium.register("OursOnly-v2", entry_point=Walk, max_episode_steps=3)  # type: ignore
    try:
        for name in "OursOnly", "OursOnly-v2", "gymnasium:OursOnly-v2":
            with make(name, 1, final_observations=True) as vec:
                rows = started(vec)
                ends = [
                    float(np.array(step(vec, rows, STAY).final_observations)[0]) for _ in range(3)
                ]
                assert ends == [0, 0, TRUNCATED]
        refused(r"is deprecated\. Please use `OursOnly-v2`", "OursOnly-v1")
    finally:
        del gymnasium.registry["OursOnly-v2"]
    with make("Pendulum-v1", 1, env={"g": 0.0, "max_episode_steps": 2}) as vec:
        rows = started(vec)
        assert [step(vec, rows, 0.0).terminals[0] for _ in range(2)] == [0, 1]


# ---- Pictures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_render_shows_first_environment_or_says_why_not(backend):
    with make(agents=2, backend=backend, render=True, env={"size": 2}) as vec:
        rows = started(vec)
        assert np.asarray(vec.render())[0, :, 0].tolist() == [0, 255, 0, 0, 0]
        step(vec, rows, RIGHT)
        assert np.asarray(vec.render())[0, :, 0].tolist() == [0, 0, 255, 0, 0]

    class Undrawn(Walk):
        def render(self):
            return None if backend == "sync" else 1 // 0

    said = "its picture is None, exp" if backend == "sync" else r"environment 0 .* failed in render"
    with make(Undrawn, 1, backend=backend, render=True) as vec:
        started(vec)
        with pytest.raises(UserError, match=said):
            vec.render()


# ---- Versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("1.0.0", r"Gymnasium 1\.0\.0 is installed, expected 0\.29, or 1\.1"),
        ("0.29.1", r"x needs Gymnasium 1\.1 or newer, 0\.29\.1 is installed"),
    ],
)
def test_gymnasium_must_be_supported(version: str, message: str, monkeypatch):
    monkeypatch.setattr(gymnasium, "__version__", "1.10")
    installed.require_newer("x")
    monkeypatch.setattr(gymnasium, "__version__", version)
    with pytest.raises(UserError, match=message):
        installed.gymnasium()
        installed.require_newer("x")


def test_vectorized_form_needs_a_newer_gymnasium(monkeypatch):
    monkeypatch.setattr(gymnasium, "__version__", "0.29.1")
    refused(r"but Gymnasium 0\.29\.1 has no vectorised versions that", CARTPOLE, backend="vector")


# ---- The probe -----------------------------------------------------------------------------------


def test_class_defined_again_is_probed_again():
    """As in a notebook: another class of the same name, with other masks."""
    for masked in (False, True, False):

        class Mine(Walk):
            def __init__(self, masked=masked):
                super().__init__(masked=masked)

        with make(Mine, 2) as vec:
            assert (started(vec).masks is not None) == masked
