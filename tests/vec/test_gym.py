"""Gymnasium's environments: what their rows say, which form is chosen, and how they are made."""

import importlib
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from puffer_mlx.errors import UserError
from puffer_mlx.vec import plan
from puffer_mlx.vec.base import TERMINATED, TRUNCATED, Rows
from puffer_mlx.vec.gym.agents import ended_infos
from puffer_mlx.vec.gym.installed import has_own_vector_forms
from puffer_mlx.vec.gym.make import GymRecipe as Recipe
from puffer_mlx.vec.gym.vec import GymVec
from puffer_mlx.vec.rows import allocate_rows, random_actions

HERE = Path(__file__).parents[1] / "envs" / "python"
sys.path.append(str(HERE))
gym_walk = importlib.import_module("gym_walk")
Walk, Walks = gym_walk.Walk, gym_walk.Walks

RIGHT, STAY = np.float32(2), np.float32(1)  # the numbers of choices
CARTPOLE = "CartPole-v1"
OWN = "its own vectorised form"
NEEDS_1_1 = pytest.mark.skipif(not has_own_vector_forms(), reason="needs Gymnasium 1.1")


def make(factory=Walk, agents=6, **keywords) -> GymVec:
    return GymVec(
        factory, **{"name": "walk", "total_agents": agents, "backend": "sync", **keywords}
    )


def started(vec: GymVec) -> Rows:
    rows = allocate_rows(vec, vec.num_agents)
    for array in rows:
        if array is not None:
            array.fill(9)
    vec.reset(rows)
    return rows


def step(vec: GymVec, rows: Rows, actions) -> Rows:
    """All groups at once; what a step wrote, copied."""
    N, n = vec.num_agents, vec.num_agents // vec.num_groups
    actions = np.broadcast_to(np.asarray(actions, np.float32), (N,)).reshape(N, 1).copy()
    parts = [slice(g * n, (g + 1) * n) for g in range(vec.num_groups)]
    for group, agents in enumerate(parts):
        vec.send(group, actions[agents], rows.part(agents))
    for group in range(vec.num_groups):
        vec.wait(group)
    return Rows._make(None if array is None else array.copy() for array in rows)


# ---- Rows ----------------------------------------------------------------------------------------


def test_rows_without_finals():
    """An episode's last step brings the first observation of the next."""
    with make(agents=3, env={"size": 2, "limit": 4}) as vec:
        assert not vec.finals
        rows = started(vec)
        assert rows.finals is None
        assert rows.observations.dtype == np.float32
        assert rows.observations.tolist() == [[-1, 0, 1], [0, 0, 1], [1, 0, 1]]
        assert not rows.rewards.any() and not rows.terminals.any()
        seen = [step(vec, rows, RIGHT) for _ in range(4)]
        # starting at 1: the end at once, and again; from 0 after 2 steps; from -1 after 3
        assert [list(row.terminals) for row in seen] == [[0, 0, 1], [0, 1, 1], [1, 0, 1], [0, 1, 1]]
        assert [list(row.rewards) for row in seen] == [[0, 1, 2], [1, 2, 2], [2, 1, 2], [0, 2, 2]]
        assert seen[0].observations.tolist() == [[0, 1, 1], [1, 1, 1], [1, 0, 2]]
        assert seen[2].observations.tolist() == [[-1, 0, 2], [1, 1, 2], [1, 0, 4]]


@pytest.mark.parametrize(
    ("backend", "factory"),
    [("sync", Walk), pytest.param("vector", Walks, marks=NEEDS_1_1)],
)
def test_rows_with_finals(backend: str, factory):
    """The last observation has a row of its own, and says why it is the last."""
    with make(factory, 2, backend=backend, finals=True, env={"size": 2, "limit": 2}) as vec:
        assert vec.finals
        rows = started(vec)
        assert rows.finals is not None and not rows.finals.any()
        first = rows.observations[:, 0].tolist()
        assert first == ([-1, -1] if factory is Walks else [-1, 0])
        moves = [[STAY, RIGHT], [STAY, RIGHT], [RIGHT, RIGHT], [STAY, STAY]]
        if factory is Walks:  # agent 1 begins at -1 too
            moves[0][1] = np.float32(0)
            seen = [step(vec, rows, move) for move in moves[:3]]
            assert [np.array(row.finals).tolist() for row in seen] == [[0, 1], [2, 0], [0, 0]]
            assert [row.terminals.tolist() for row in seen] == [[0, 0], [0, 1], [1, 0]]
            return
        seen = [step(vec, rows, move) for move in moves]
        # agent 1 reaches the end when its time is out: the end counts
        finals = [np.array(row.finals).tolist() for row in seen]
        assert finals == [[0, 0], [TRUNCATED, TERMINATED], [0, 0], [0, 0]]
        assert [row.terminals.tolist() for row in seen] == [[0, 0], [0, 0], [1, 1], [0, 0]]
        assert [row.rewards.tolist() for row in seen] == [[-1, 1], [-1, 2], [0, 0], [-1, 0]]
        assert seen[1].observations.tolist() == [[-1, 2, 1], [2, 2, 1]]
        assert seen[2].observations.tolist() == [[-1, 0, 2], [0, 0, 2]]  # the action meant nothing


@NEEDS_1_1
def test_a_vector_environment_that_begins_anew_in_the_same_step():
    env = {"mode": "SameStep", "size": 2}
    with make(Walks, 2, backend="vector", env=env, finals=True) as vec:
        assert not vec.finals  # it can't
        rows = started(vec)
        seen = [step(vec, rows, [0, STAY]) for _ in range(2)]
        assert [row.terminals.tolist() for row in seen] == [[1, 0], [1, 0]]
        assert (
            vec.episodes()
            == [
                {"episode_return": -2, "episode_length": 1, "score": -2, "final_position": -2}
                | {"env": 0, "n": 1}
            ]
            * 2
        )


def history(steps=60, **keywords) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(0)
    with make(agents=4, **keywords) as vec:
        rows = started(vec)
        seen = []
        for _ in range(steps):
            found = step(vec, rows, random_actions(vec, 4, rng).ravel())
            seen.append([array for array in found if array is not None])
        return seen


@pytest.mark.parametrize(
    ("factory", "keywords"),
    [
        (CARTPOLE, {"finals": False}),
        (Walk, {"finals": True, "env": {"size": 2, "masked": True, "nested": True}}),
    ],
)
def test_sync_and_async_and_groups_give_the_same(factory, keywords: dict):
    """Of CartPole, whose episodes begin at random, with any seed; of a walk with all there is."""
    usual: dict = {"factory": factory, "seed": 7, **keywords}
    expected = history(backend="sync", **usual)
    assert sum(found[2].sum() for found in expected) > 3
    for form in ({"num_buffers": 2}, {"backend": "async", "num_buffers": 2}):
        for mine, its in zip(expected, history(**usual, **form), strict=True):
            for a, b in zip(mine, its, strict=True):
                np.testing.assert_array_equal(a, b)
    other = history(**{**usual, "seed": 8})
    assert any((a[0] != b[0]).any() for a, b in zip(expected, other, strict=True))


def test_environments_are_seeded_one_by_one_as_gymnasium_does():
    """SyncVectorEnv gives environment i seed + i, too."""
    envs = SyncVectorEnv([lambda: gymnasium.make(CARTPOLE)] * 3)
    expected, _ = envs.reset(seed=2**31)
    with make(CARTPOLE, 3, seed=2**31) as vec:
        first = started(vec)
        np.testing.assert_array_equal(first.observations, expected)
        step(vec, first, 0)
        again = started(vec)  # goes on drawing
        assert not (again.observations == expected).all()
    envs.close()


def test_a_reset_in_the_middle_begins_anew():
    with make(agents=2, finals=True, env={"size": 2, "limit": 9}) as vec:
        rows = started(vec)
        assert step(vec, rows, [STAY, RIGHT]).observations[:, 1].tolist() == [1, 1]
        found = step(vec, rows, [STAY, RIGHT])
        assert found.finals is not None and found.finals.tolist() == [0, 1]
        rows = started(vec)
        assert rows.observations[:, 1].tolist() == [0, 0]
        assert rows.finals is not None and not rows.finals.any()
        after = step(vec, rows, STAY)
        assert not after.terminals.any() and after.observations[:, 1].tolist() == [1, 1]
        vec.log()
        for _ in range(8):
            step(vec, rows, STAY)
        assert vec.log()["episode_length"] == 9  # what was cut off by the reset isn't counted


@pytest.mark.parametrize("finals", [False, True])
def test_logs(finals: bool):
    with make(agents=2, finals=finals, env={"size": 2, "limit": 4}) as vec:
        rows = started(vec)
        assert vec.log() == {}
        for _ in range(4 + finals):  # the reset takes a step of its own
            step(vec, rows, [STAY, RIGHT])  # -1 -1 -1 -1, and twice 1 2
        assert vec.log() == {
            "episode_return": (-4 + 3 + 3) / 3,
            "episode_length": (4 + 2 + 2) / 3,
            "score": (-4 + 3 + 3) / 3,
            "final_position": (-1 + 2 + 2) / 3,
            "n": 3,
        }
        assert vec.log() == {} and vec.episodes() == []


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_scores_are_sums_of_rewards_as_gymnasium_has_them(backend: str):
    """In float64, though rows are float32."""

    class Paid(Walk):
        def step(self, action):
            seen, _, *rest = super().step(action)
            return seen, 0.1 + 1e-12 * self.steps, *rest

    with make(Paid, 1, backend=backend, env={"limit": 3}) as vec:
        rows = started(vec)
        for _ in range(3):
            step(vec, rows, STAY)
        assert vec.episodes()[0]["episode_return"] == 0.1 + 1e-12 + 0.1 + 2e-12 + 0.1 + 3e-12


def test_what_only_some_environments_tell_is_theirs():
    infos = {
        "a": np.array([1.0, 0.0, 3.0]),
        "_a": np.array([True, False, True]),
        "in": {"b": np.array([4, 5, 6]), "_b": np.array([True, True, True])},
        "_in": np.array([False, True, True]),
        "bare": np.array([7, 8, 9]),  # as vectorised forms may give it
    }
    over = np.array([True, True, False])
    assert ended_infos(infos, over) == {
        0: {"a": 1.0, "bare": 7},
        1: {"in": {"b": 5}, "bare": 8},
    }


def test_nested_observations():
    with make(agents=3, env={"nested": True}) as vec:
        assert vec.spec.observation_size == 5  # parity one-hot, then the walk
        rows = started(vec)
        assert rows.observations.tolist() == [[1, 0, -1, 0, 1], [1, 0, 0, 0, 1], [1, 0, 1, 0, 1]]
        assert step(vec, rows, RIGHT).observations[0].tolist() == [0, 1, 0, 1, 1]


def test_continuous_actions_are_clipped():
    with make("Pendulum-v1", 2) as vec, make("Pendulum-v1", 2) as twin:
        assert vec.spec.action.sizes == (1,)
        a, b = step(vec, started(vec), 1e6), step(twin, started(twin), 2.0)
        np.testing.assert_array_equal(a.observations, b.observations)
        assert (a.rewards == b.rewards).all() and (a.rewards < 0).all()


# ---- Masks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("finals", [False, True])
def test_masks(finals: bool):
    env = {"masked": True, "size": 2, "limit": 4}
    with make(agents=3, finals=finals, env=env) as vec:
        assert vec.spec.mask_size == 3
        rows = started(vec)
        assert rows.masks is not None
        assert rows.masks.tolist() == [[0, 1, 1], [0, 1, 1], [1, 1, 1]]
        found = step(vec, rows, RIGHT)
        assert found.masks is not None
        # at 0, at 1, and at 1 again; with finals at 2, where no action counts
        assert found.masks.tolist() == [[0, 1, 1], [1, 1, 1], [1, 1, 1]]
        found = step(vec, rows, [0, RIGHT, STAY])
        assert found.masks is not None
        assert found.masks.tolist() == [[0, 1, 1], [1 if finals else 0, 1, 1], [1, 1, 1]]


class PerHead(Walk):
    """Masks as ``MultiDiscrete.sample`` takes them; the second head leaves no choice."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.MultiDiscrete([3, 1, 2])

    def step(self, action):
        return super().step(int(action[0]) - 1)

    def _info(self):
        return {"action_mask": (np.array([1, 0, 1]), np.array([1]), np.array([0, 1]))}


def test_masks_head_by_head():
    with make(PerHead, 2) as vec:
        assert vec.spec.action.sizes == (3, 2)
        rows = started(vec)
        assert rows.masks is not None
        assert rows.masks.tolist() == [[1, 0, 1, 0, 1]] * 2


# ---- Forms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make_, agents, keywords, expected",
    [
        pytest.param(CARTPOLE, 4, {}, f"vector: CartPoleVectorEnv, {OWN}", marks=NEEDS_1_1),
        pytest.param(
            *(CARTPOLE, 4, {"sutton_barto_reward": True}, "vector: CartPoleVectorEnv"),
            marks=NEEDS_1_1,
        ),
        (CARTPOLE, 1, {"disable_env_checker": True}, "sync: there is only one"),
        (Walk, 1, {}, "sync: there is only one"),
        (Walk, 2, {}, "sync: a step takes "),
        pytest.param(Walks, 2, {}, f"vector: Walks, {OWN}", marks=NEEDS_1_1),
    ],
)
def test_auto(make_, agents: int, keywords: dict, expected: str, monkeypatch):
    monkeypatch.setattr(plan, "cores", lambda: 4)
    monkeypatch.setattr(plan, "ROUND_TRIP", 1.0)
    with make(make_, agents, backend="auto", env=keywords) as vec:
        assert vec.description.startswith(expected) and "\n" not in vec.description


def test_auto_takes_processes_for_slow_steps(monkeypatch):
    def chosen(seconds: float, agents: int, cores: int = 4) -> str:
        monkeypatch.setattr(plan, "step_time", lambda *_: seconds)
        monkeypatch.setattr(plan, "cores", lambda: cores)
        return plan.plan(Recipe("walk", Walk), agents, 1, "auto", 1, 0).description

    assert chosen(0.002, 8) == "async: 8 processes; a step takes 2 ms"
    assert chosen(plan.ROUND_TRIP, 2).startswith("sync: ")  # two processes save half of it
    assert chosen(3 * plan.ROUND_TRIP, 2).startswith("async: ")
    assert chosen(0.002, 8, cores=1) == "sync: there is one core"


def test_a_measurement_takes_only_legal_steps():
    class Strict(Walk):
        def step(self, action):
            assert self.position > 0 or action >= 0
            return super().step(action)

    assert 0 < plan.step_time(Recipe("walk", Strict, {"masked": True})) < 0.1


@NEEDS_1_1
def test_forms_that_do_not_exist():
    with pytest.raises(UserError, match=r"vec\.backend is vector, but it doesn't take num_envs"):
        make(Walk, 2, backend="vector")
    with pytest.raises(UserError, match="Pendulum-v1 has no vectorised form"):
        make("Pendulum-v1", 2, backend="vector")
    with pytest.raises(UserError, match="its vectorised form takes no 'render_fps'"):
        make(CARTPOLE, 2, backend="vector", env={"render_fps": 3})
    with pytest.raises(UserError, match=r"\"autoreset_mode\"\] is Disabled"):
        make(Walks, 2, backend="vector", env={"mode": "Disabled"})
    with pytest.raises(UserError, match=r"7 is not a multiple of vec\.num_buffers 2"):
        make(Walk, 7, num_buffers=2)


def test_what_is_no_environment():
    with pytest.raises(UserError, match=r"it made a builtins\.dict, expected a gymnasium\.Env"):
        make(dict, 2)


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_an_environment_without_a_space(name):
    class Spaceless(Walk):
        def __init__(self) -> None:
            super().__init__()
            delattr(self, name)

    with pytest.raises(UserError, match=rf"walk: it has no {name}\n.*gymnasium\.spaces"):
        make(Spaceless, 2)


def test_observations_that_no_machine_has_memory_for():
    """Gymnasium would allocate bounds of all agents first."""

    class Vast(Walk):
        def __init__(self) -> None:
            super().__init__()
            box, shape = gymnasium.spaces.Box(-1, 1, (1,)), (10**13,)  # with bounds of no memory
            box._shape, box.low, box.high = (
                shape,
                *(np.broadcast_to(b, shape) for b in (box.low, box.high)),
            )
            self.observation_space = box

    said = r"walk: observations of shape \(10000000000000,\) for 2 agents make arrays of 80,000 GB"
    with pytest.raises(UserError, match=said):
        make(Vast, 2)


@NEEDS_1_1
def test_a_vectorised_form_of_another_size():
    with pytest.raises(UserError, match="asked for num_envs=2, it made a Walks of 3"):
        make(lambda num_envs: Walks(3), 2, backend="vector")


def test_environments_that_are_not_gymnasiums(monkeypatch):
    """Of gym, by the module their class comes from, or of nobody."""

    class Bare:
        def reset(self): ...

        def step(self, action): ...

    with pytest.raises(UserError, match=r"expected a gymnasium\.Env\n.*derive it from gymnasium"):
        make(Bare, 2)
    monkeypatch.setattr(Bare, "__module__", "gym.core")
    with pytest.raises(UserError, match=r"expected a gymnasium\.Env\n.*import gymnasium as gym"):
        make(type("Mine", (Bare,), {}), 2)


# ---- Making --------------------------------------------------------------------------------------


def test_ids_that_do_not_exist():
    with pytest.raises(UserError, match=r"gym:CartPol-v1: .*CartPol.*Did you mean: `CartPole`"):
        make("CartPol-v1", name="gym:CartPol-v1")
    with pytest.raises(UserError, match=r"v7.*\n.*hint"):
        make("CartPole-v7")
    with pytest.raises(UserError, match=r"hint: .*gym:PACKAGE:Nowhere/Game-v1"):
        make("Nowhere/Game-v1")
    with pytest.raises(UserError, match=r"No module named 'nowhere'\n.*pip install nowhere"):
        make("nowhere:Game-v1")


def test_ids_of_all_kinds():
    gymnasium.register("OursOnly-v2", entry_point=Walk, max_episode_steps=3)
    try:
        for name in "OursOnly", "OursOnly-v2", "gymnasium:OursOnly-v2":
            with make(name, 1, finals=True) as vec:
                rows = started(vec)
                for _ in range(3):
                    found = step(vec, rows, STAY)
                assert found.finals is not None and found.finals.tolist() == [TRUNCATED]
        with pytest.raises(UserError, match=r"is deprecated\. Please use `OursOnly-v2`"):
            make("OursOnly-v1")
    finally:
        del gymnasium.registry["OursOnly-v2"]


def test_an_argument_that_it_does_not_take():
    with pytest.raises(UserError, match=r"it takes no env\.sise\n.*it takes size, limit, masked"):
        make(env={"sise": 3})
    with pytest.raises(UserError, match=r"it takes no env\.gravity\n.*render_mode"):
        make(CARTPOLE, env={"gravity": 3})
    with make("Pendulum-v1", 1, env={"g": 0.0, "max_episode_steps": 2}) as vec:
        rows = started(vec)
        assert [step(vec, rows, 0.0).terminals[0] for _ in range(2)] == [0, 1]


def test_a_missing_package(monkeypatch):
    error = gymnasium.error.DependencyNotInstalled
    message = 'Box2D is not installed, run `pip install "gymnasium[box2d]"`'

    def needs_box2d():
        raise error(message)

    with pytest.raises(UserError, match=r"Box2D is not installed.*\n.*install what is missing"):
        make(needs_box2d)
    with pytest.raises(UserError, match=r"No module named 'gym'\n.*import gymnasium as gym"):

        def needs_gym():
            raise ModuleNotFoundError("No module named 'gym'", name="gym")

        make(needs_gym)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UserError, match=r"pip install 'puffer-mlx\[gym\]'"):
        make(CARTPOLE)


@NEEDS_1_1
def test_gymnasiums_advice_is_not_repeated_for_each_copy(capfd):
    """Under pytest it would be an error, too."""

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


def test_gymnasiums_checks_do_not_slow_down_every_step():
    assert "Checker" not in str(Recipe("x", "Pendulum-v1")())
    assert "Checker" in str(Recipe("x", "Pendulum-v1", {"disable_env_checker": False})())


# ---- Other ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_pictures(backend: str):
    with make(agents=2, backend=backend, render=True, env={"size": 2}) as vec:
        rows = started(vec)
        assert np.asarray(vec.render())[0, :, 0].tolist() == [0, 255, 0, 0, 0]
        step(vec, rows, RIGHT)
        assert np.asarray(vec.render())[0, :, 0].tolist() == [0, 0, 255, 0, 0]


def test_pictures_that_do_not_exist():
    with pytest.raises(UserError, match="it takes no render_mode"):
        make(lambda: Walk(), render=True)

    class Blind(Walk):
        def render(self):
            return None

    with (
        make(Blind, render=True) as vec,
        pytest.raises(UserError, match="its picture is None, expected uint8"),
    ):
        vec.render()


def test_states_cannot_be_had():
    with make() as vec:
        assert vec.state() is None
        with pytest.raises(UserError, match="can't go on from a state"):
            vec.restore(np.zeros(3, np.uint8))


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_busy_seconds(backend: str):
    class Slow(Walk):
        def step(self, action):
            time.sleep(0.02)
            return super().step(action)

    with make(Slow, 2, backend=backend) as vec:
        rows = started(vec)
        step(vec, rows, STAY)
        before = vec.busy_seconds()
        time.sleep(0.3)  # isn't counted
        step(vec, rows, STAY)
        assert before >= 0.04 and vec.busy_seconds() - before >= 0.04
        vec.send(0, np.ones((2, 1), np.float32), rows)
        assert vec.busy_seconds() >= 0.08  # as it was before
        vec.wait(0)
        assert vec.busy_seconds() >= 0.12


def test_importing_it_loads_neither_gymnasium_nor_mlx():
    code = (
        "import sys, puffer_mlx.vec.gym; sys.exit(bool({'gymnasium', 'mlx.core'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize(
    ("error", "said", "lost"),
    [
        (gymnasium.error.DependencyNotInstalled("no paint"), "can't be drawn: no paint", False),
        (RuntimeError("no paint"), r"environment 0 \(seed 0\) failed in render: Runtime", True),
    ],
)
def test_a_picture_that_fails(error: Exception, said: str, lost: bool, backend: str):
    class Unpainted(Walk):
        def render(self):
            raise error

    with make(Unpainted, 1, backend=backend, render=True) as vec:
        rows = started(vec)
        with pytest.raises(UserError, match=said):
            vec.render()
        if not lost:
            step(vec, rows, STAY)


@pytest.mark.parametrize("chosen", ["osmesa", None])
def test_pictures_without_a_display(tmp_path, monkeypatch, chosen):
    """MuJoCo's fail somewhere in OpenGL: which variable draws without a display is said."""
    (tmp_path / "mujoco_rendering.py").write_text(
        "def draw():\n    raise RuntimeError('an OpenGL platform library has not been loaded')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    draw = importlib.import_module("mujoco_rendering").draw
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    if chosen:
        monkeypatch.setenv("MUJOCO_GL", chosen)

    class Drawn(Walk):
        def __init__(self, render_mode=None):
            super().__init__()
            self.render_mode = render_mode

        def render(self):
            return draw()

    with make(Drawn, 1, backend="sync", render=True) as vec:
        started(vec)
        with pytest.raises(UserError, match=r"can't be drawn: an OpenGL") as caught:
            vec.render()
    said = str(caught.value)
    assert "MUJOCO_GL=egl" in said and "MUJOCO_GL=osmesa" in said
    assert ("it is 'osmesa' now" in said) == (chosen is not None)
    sys.modules.pop("mujoco_rendering")
