"""Gymnasium's environments: rows, the choice of a backend, and errors of construction."""

import subprocess
import sys
from typing import Any

import gym_walk
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from stepping import alike, gym_vec, played, started, step

from puffer_mlx.config.schema import Wrap
from puffer_mlx.errors import UserError
from puffer_mlx.vec import backend_choice
from puffer_mlx.vec.base import TERMINATED, TRUNCATED
from puffer_mlx.vec.gym import installed
from puffer_mlx.vec.gym.make import GymFactory
from puffer_mlx.vec.python_vec import PythonVec

Walk, Walks = gym_walk.Walk, gym_walk.Walks

RIGHT, STAY = 2, 1  # the numbers of choices
CARTPOLE = "CartPole-v1"
OWN = "its own vectorised form"
NEEDS_1_1 = pytest.mark.skipif(not installed.has_own_vector_forms(), reason="needs Gymnasium 1.1")


def make(factory: Any = Walk, agents=6, **keywords) -> PythonVec:
    return gym_vec(
        factory, **{"name": "walk", "total_agents": agents, "backend": "sync", **keywords}
    )


def refused(said: str, *arguments, **keywords) -> None:
    with pytest.raises(UserError, match=said):
        make(*arguments, **keywords)


# ---- Rows ----------------------------------------------------------------------------------------


def test_rows_without_finals_show_first_observation_of_next_episode():
    with make(agents=3, env={"size": 2, "limit": 4}) as vec:
        rows = started(vec)
        assert not vec.finals and rows.finals is None
        assert rows.observations.dtype == np.float32
        assert rows.observations.tolist() == [[-1, 0, 1], [0, 0, 1], [1, 0, 1]]
        assert not rows.rewards.any() and not rows.terminals.any()
        seen = [step(vec, rows, RIGHT) for _ in range(4)]
        # starting at 1: the end at once, and again; from 0 after 2 steps; from -1 after 3
        assert [list(row.terminals) for row in seen] == [[0, 0, 1], [0, 1, 1], [1, 0, 1], [0, 1, 1]]
        assert [list(row.rewards) for row in seen] == [[0, 1, 2], [1, 2, 2], [2, 1, 2], [0, 2, 2]]
        assert seen[0].observations.tolist() == [[0, 1, 1], [1, 1, 1], [1, 0, 2]]
        assert seen[2].observations.tolist() == [[-1, 0, 2], [1, 1, 2], [1, 0, 4]]


def test_rows_with_finals_show_last_observation():
    """The last observation has its row, which says why the episode ended."""
    with make(agents=2, finals=True, env={"size": 2, "limit": 2}) as vec:
        rows = started(vec)
        assert vec.finals and not np.any(rows.finals)
        seen = [step(vec, rows, [move, RIGHT]) for move in (STAY, STAY, RIGHT)]
        seen.append(step(vec, rows, STAY))
        # agent 1 reaches the end when its time is out: the end counts
        ends = [[0, 0], [TRUNCATED, TERMINATED], [0, 0], [0, 0]]
        assert [np.array(row.finals).tolist() for row in seen] == ends
        assert [row.terminals.tolist() for row in seen] == [[0, 0], [0, 0], [1, 1], [0, 0]]
        assert [row.rewards.tolist() for row in seen] == [[-1, 1], [-1, 2], [0, 0], [-1, 0]]
        assert seen[1].observations.tolist() == [[-1, 2, 1], [2, 2, 1]]
        assert seen[2].observations.tolist() == [[-1, 0, 2], [0, 0, 2]]  # the action meant nothing
        started(vec)  # in the middle
        assert not step(vec, rows, STAY).terminals.any()


@NEEDS_1_1
def test_rows_of_vectorized_forms_of_both_reset_modes():
    """With SameStep there are no last observations."""
    env = {"size": 2, "limit": 2}
    with make(Walks, 2, backend="vector", finals=True, env=env) as vec:
        rows = started(vec)
        seen = [step(vec, rows, move) for move in ([STAY, 0], [STAY, RIGHT], [RIGHT, RIGHT])]
        assert [np.array(row.finals).tolist() for row in seen] == [[0, 1], [2, 0], [0, 0]]
        assert [row.terminals.tolist() for row in seen] == [[0, 0], [0, 1], [1, 0]]
    env = {"mode": "SameStep", "size": 2}
    with make(Walks, 2, backend="vector", env=env, finals=True) as vec:
        assert not vec.finals
        rows = started(vec)
        assert [step(vec, rows, [0, STAY]).terminals.tolist() for _ in range(2)] == [[1, 0]] * 2
        told = {"episode_return": -2, "episode_length": 1, "score": -2, "final_position": -2}
        assert vec.episodes() == [told | {"env": 0, "n": 1}] * 2


def test_backends_and_groups_give_equal_rows():
    env = {"size": 2, "masked": True, "nested": True}

    def history(**more):
        with make(Walk, 4, **{"seed": 7, "finals": True, "env": env, **more}) as vec:
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


def test_log_is_the_mean_of_complete_episodes():
    with make(agents=2, finals=True, env={"size": 2, "limit": 4}) as vec:
        rows = started(vec)
        step(vec, rows, RIGHT)
        assert vec.log() == {} and vec.reset(rows) is None  # what is cut off isn't counted
        for _ in range(5):  # the reset takes a step
            step(vec, rows, [STAY, RIGHT])  # -1 -1 -1 -1, and twice 1 2
        assert vec.log() == {
            "episode_return": (-4 + 3 + 3) / 3,
            "episode_length": (4 + 2 + 2) / 3,
            "score": (-4 + 3 + 3) / 3,
            "final_position": (-1 + 2 + 2) / 3,
            "n": 3,
        }
        assert vec.log() == {} and vec.episodes() == []


def test_scores_are_sums_in_float64():
    class Paid(Walk):
        def step(self, action):
            seen, _, *rest = super().step(action)
            return seen, 0.1 + 1e-12 * self.steps, *rest

    with make(Paid, 1, backend="async", env={"limit": 3}) as vec:
        rows = started(vec)
        for _ in range(3):
            step(vec, rows, STAY)
        assert vec.episodes()[0]["episode_return"] == 0.1 + 1e-12 + 0.1 + 2e-12 + 0.1 + 3e-12


def test_masks_are_those_of_infos():
    with make(agents=3, env={"masked": True, "size": 2, "limit": 4}) as vec:
        rows = started(vec)
        assert np.array(rows.masks).tolist() == [[0, 1, 1], [0, 1, 1], [1, 1, 1]]
        seen = [step(vec, rows, RIGHT).masks, step(vec, rows, [0, RIGHT, STAY]).masks]
        assert [np.array(masks).tolist() for masks in seen] == [
            [[0, 1, 1], [1, 1, 1], [1, 1, 1]],
            [[0, 1, 1], [0, 1, 1], [1, 1, 1]],
        ]


class PerHead(Walk):
    """Masks as ``MultiDiscrete.sample`` takes them; the second head leaves no choice."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.MultiDiscrete([3, 1, 2])

    def step(self, action):
        return super().step(int(action[0]) - 1)  # type: ignore

    def _info(self):
        return {"action_mask": (np.array([1, 0, 1]), np.array([1]), np.array([0, 1]))}


def test_masks_of_several_heads_are_concatenated():
    with make(PerHead, 2) as vec:
        assert vec.spec.action.sizes == (3, 2)
        assert np.array(started(vec).masks).tolist() == [[1, 0, 1, 0, 1]] * 2


# ---- Forms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "agents", "expected"),
    [
        pytest.param(CARTPOLE, 4, f"vector: CartPoleVectorEnv, {OWN}", marks=NEEDS_1_1),
        (Walk, 1, "sync: there is only one"),
        (Walk, 2, "sync: a step takes "),
    ],
)
def test_auto_backend_prefers_vectorized_form(factory, agents: int, expected: str, monkeypatch):
    monkeypatch.setattr(backend_choice, "cores", lambda: 4)
    monkeypatch.setattr(backend_choice, "ROUND_TRIP", 1.0)
    with make(factory, agents, backend="auto") as vec:
        assert vec.description.startswith(expected) and "\n" not in vec.description


def test_auto_backend_is_async_for_slow_steps(monkeypatch):
    def chosen(seconds: float, agents: int, cores: int = 4) -> str:
        monkeypatch.setattr(backend_choice, "step_time", lambda *_: seconds)
        monkeypatch.setattr(backend_choice, "cores", lambda: cores)
        return backend_choice.choose_backend(
            GymFactory("walk", Walk), agents, 1, "auto", 1, 0
        ).description

    assert chosen(0.002, 8) == "async: 8 processes; a step takes 2 ms"
    assert chosen(backend_choice.ROUND_TRIP, 2).startswith(
        "sync: "
    )  # two processes save half of it
    assert chosen(3 * backend_choice.ROUND_TRIP, 2).startswith("async: ")
    assert chosen(0.002, 8, cores=1) == "sync: there is one core"


def test_step_time_is_measured_with_legal_actions():
    class Strict(Walk):
        def step(self, action):
            assert self.position > 0 or action >= 0
            return super().step(action)

    assert 0 < backend_choice.step_time(GymFactory("walk", Strict, {"masked": True})) < 0.1


VECTOR = [  # factory, arguments, message
    (Walk, {}, r"vec\.backend is vector, but it doesn't take num_envs"),
    ("Pendulum-v1", {}, "Pendulum-v1 has no vectorised form"),
    (Walks, {"mode": "Disabled"}, r"\"autoreset_mode\"\] is Disabled"),
    (lambda num_envs: Walks(3), {}, "asked for num_envs=1, it made a Walks of 3"),
]


@NEEDS_1_1
@pytest.mark.parametrize(("factory", "env", "message"), VECTOR)
def test_missing_vectorized_form_is_reported(factory, env: dict, message: str):
    refused(message, factory, 2, backend="vector", env=env)


# ---- Making --------------------------------------------------------------------------------------


class Bare:
    def reset(self): ...

    def step(self, action): ...


def needs(error: Exception):
    def factory():
        raise error

    return factory


def without_space():
    made = Walk()
    del made.observation_space
    return made


def vast():
    """Return an environment whose bounds alone would exceed any memory."""
    made, shape = Walk(), (10**13,)
    box = gymnasium.spaces.Box(-1, 1, (1,))  # whose bounds take no memory
    low, high = (np.broadcast_to(bound, shape) for bound in (box.low, box.high))
    box._shape, box.low, box.high = shape, low, high
    made.observation_space = box
    return made


BOX2D = gymnasium.error.DependencyNotInstalled('run `pip install "gymnasium[box2d]"`')
OLD_GYM = ModuleNotFoundError("No module named 'gym'", name="gym")
REFUSED = [  # factory, arguments, message
    (Bare, {}, r"expected a gymnasium\.Env\n.*derive it from gymnasium"),
    (type("Mine", (type("Old", (Bare,), {"__module__": "gym.core"}),), {}), {}, "gymnasium as gym"),
    (without_space, {}, r"walk: it has no observation_space\n.*gymnasium\.spaces"),
    (vast, {}, r"walk: observations of shape \(10000000000000,\) for 2 agents .* 80,000 GB"),
    ("CartPol-v1", {}, r"walk: .*CartPol.*Did you mean: `CartPole`"),
    (Walk, {"sise": 3}, r"it takes no env\.sise\n.*it takes size, limit, masked"),
    (needs(OLD_GYM), {}, r"No module named 'gym'\n.*import gymnasium as gym"),
]


@pytest.mark.parametrize(("factory", "env", "message"), REFUSED)
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
            with make(name, 1, finals=True) as vec:
                rows = started(vec)
                ends = [float(np.array(step(vec, rows, STAY).finals)[0]) for _ in range(3)]
                assert ends == [0, 0, TRUNCATED]
        refused(r"is deprecated\. Please use `OursOnly-v2`", "OursOnly-v1")
    finally:
        del gymnasium.registry["OursOnly-v2"]
    with make("Pendulum-v1", 1, env={"g": 0.0, "max_episode_steps": 2}) as vec:
        rows = started(vec)
        assert [step(vec, rows, 0.0).terminals[0] for _ in range(2)] == [0, 1]


@NEEDS_1_1
def test_gymnasium_warnings_are_not_repeated_per_copy(capfd):
    """Under pytest a warning would be an error, too."""

    class Imprecise(Walk):
        def __init__(self):
            super().__init__()
            low = np.full(3, -100.0)
            self.observation_space = gymnasium.spaces.Box(low, -low, dtype=np.float32)

    with pytest.warns(UserWarning, match="precision lowered"):
        Imprecise()
    for backend in "sync", "async":
        make(Imprecise, 2, backend=backend).close()
    assert capfd.readouterr() == ("", "")


def test_gymnasium_checker_is_disabled_by_default():
    assert "Checker" not in str(GymFactory("x", "Pendulum-v1").single())
    assert "Checker" in str(GymFactory("x", "Pendulum-v1", {"disable_env_checker": False}).single())


def test_import_loads_neither_gymnasium_nor_mlx():
    code = (
        "import sys, puffer_mlx.vec.gym; sys.exit(bool({'gymnasium', 'mlx.core'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---- Pictures ------------------------------------------------------------------------------------


def test_render_shows_first_environment():
    with make(agents=2, backend="async", render=True, env={"size": 2}) as vec:
        rows = started(vec)
        assert np.asarray(vec.render())[0, :, 0].tolist() == [0, 255, 0, 0, 0]
        step(vec, rows, RIGHT)
        assert np.asarray(vec.render())[0, :, 0].tolist() == [0, 0, 255, 0, 0]


class Drawn(Walk):
    """Returns or raises the given picture."""

    def __init__(self, picture, render_mode=None):
        super().__init__()
        self.picture = picture

    def render(self):
        if isinstance(self.picture, Exception):
            raise self.picture
        return self.picture


@pytest.mark.parametrize(
    ("picture", "message", "backend"),
    [
        (None, "its picture is None, expected uint8", "sync"),
        (gymnasium.error.DependencyNotInstalled("paint"), "can't be drawn: paint", "async"),
        (RuntimeError("no paint"), r"environment 0 \(seed 0\) failed in render: Run", "async"),
    ],
)
def test_missing_picture_is_reported(picture, message: str, backend: str):
    with make(Drawn, 1, backend=backend, render=True, env={"picture": picture}) as vec:
        rows = started(vec)
        with pytest.raises(UserError, match=message):
            vec.render()
        if not isinstance(picture, RuntimeError):
            step(vec, rows, STAY)


# ---- Versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.28.1", r"Gymnasium 0\.28\.1 is installed, expected 0\.29, or 1\.1"),
        ("1.0.0", r"Gymnasium 1\.0\.0 is installed, expected 0\.29, or 1\.1"),
        ("0.29.1", r"x needs Gymnasium 1\.1 or newer, 0\.29\.1 is installed"),
        ("1.10", ""),
    ],
)
def test_gymnasium_must_be_supported(version: str, message: str, monkeypatch):
    monkeypatch.setattr(gymnasium, "__version__", version)
    if not message:
        assert installed.gymnasium() is gymnasium and installed.has_own_vector_forms()
        return installed.need_newer("x")
    with pytest.raises(UserError, match=message):
        installed.gymnasium()
        assert not installed.has_own_vector_forms()
        installed.need_newer("x")


def test_settings_that_need_a_newer_gymnasium_are_refused(monkeypatch):
    monkeypatch.setattr(gymnasium, "__version__", "0.29.1")
    refused(r"walk: wrap\.clip_rewards needs Gymnasium 1\.1", wrap=Wrap(clip_rewards=1.0))
    refused(r"but Gymnasium 0\.29\.1 has none that", CARTPOLE, backend="vector")


# ---- The probe -----------------------------------------------------------------------------------


def test_class_defined_again_is_probed_again():
    """As in a notebook: another class of the same name, with other masks."""
    for masked in (False, True, False):

        class Mine(Walk):
            def __init__(self, masked=masked):
                super().__init__(masked=masked)

        with make(Mine, 2) as vec:
            assert (started(vec).masks is not None) == masked
