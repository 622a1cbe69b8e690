"""benchmarks/partial_environments.py: the rules of its tasks, and what memory is worth in them."""

import itertools
from typing import Any

import numpy as np
import pytest
from native_envs import Stepper
from running import ROOT, module_of

from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.vec import NativeVec

gymnasium = pytest.importorskip("gymnasium")

PATH = ROOT / "benchmarks" / "partial_environments.py"
START, CORRIDOR, JUNCTION = {True: [0, 1, 1], False: [1, 1, 0]}, [1, 0, 1], [0, 1, 0]
NORTH, EAST, SOUTH, WEST = range(4)
HIDDEN = "cartpole_without_velocity", "pendulum_without_velocity"


TASKS = module_of(PATH)


def maze(north: bool, length: int) -> tuple[Any, list[float]]:
    """A maze whose goal is there, and what is seen first."""
    made = TASKS.t_maze(length)
    for seed in range(100):
        seen = made.reset(seed=seed)[0].tolist()
        if made.north == north:
            return made, seen
    raise AssertionError("all goals are on one side")


# ---- what Gymnasium asks of an environment -------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*(different from the unwrapped|symmetric and normalized)")
def test_gymnasiums_checker():
    from gymnasium.utils.env_checker import check_env

    for name in ["memory", "t_maze", *HIDDEN]:
        check_env(getattr(TASKS, name)(), skip_render_check=True)


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 10])
@pytest.mark.parametrize("right", [True, False])
def test_memory_is_the_environment_in_c(length, right):
    """The same cue and the same actions: the same observations, rewards and ends."""
    twin = TASKS.memory(length)
    folder, told = find_environment("memory"), set()
    with NativeVec(folder, total_agents=1, env={"length": length}) as native:
        stepper = Stepper(native)
        for episode in range(20):
            cue = float(stepper.rows.observations[0, 0])
            twin.reset(seed=episode)
            twin.cue, told = int(cue), {*told, cue}
            for tick in range(1, length + 1):
                action = int((cue > 0) == (right == (tick == length)))
                rows = stepper.step(np.array([[action]], np.float32))
                seen, reward, over, cut, _ = twin.step(action)
                assert (reward, over, cut) == (rows.rewards[0], rows.terminals[0], False)
                if not over:
                    assert seen == rows.observations[0] == 0
    assert told == {-1, 1}


# ---- the T-maze ----------------------------------------------------------------------------------


def test_the_way_through_the_maze():
    for north, length in itertools.product((True, False), (1, 2, 7)):
        made, seen = maze(north, length)
        assert seen == START[north]
        for place in range(1, length + 1):
            seen, reward, over, cut, _ = made.step(EAST)
            assert seen.tolist() == (JUNCTION if place == length else CORRIDOR)
            assert (reward, over, cut) == (0, False, False)
        assert made.step(EAST)[1:4] == (-0.1, False, False)  # a wall
        assert made.step(NORTH if north else SOUTH)[1:4] == (4, True, False)


def test_walls_and_the_wrong_arm():
    for north in (True, False):
        made, _ = maze(north, 2)
        for action in (NORTH, SOUTH, WEST):
            seen, reward, over, cut, _ = made.step(action)
            assert (reward, over, cut) == (-0.1, False, False)
            assert seen.tolist() == START[north]
        made.step(EAST)
        for action in (NORTH, SOUTH):
            assert made.step(action)[1] == -0.1
        seen, reward, *_ = made.step(WEST)  # back to where the goal is told
        assert (seen.tolist(), reward) == (START[north], 0)
        made.step(EAST)
        made.step(EAST)
        assert made.step(SOUTH if north else NORTH)[1:4] == (-0.1, True, False)
    made, _ = maze(True, 3)  # nobody waits for one who stands still
    cuts = [made.step(WEST)[2:4] for _ in range(60)]
    assert cuts == [(False, False)] * 59 + [(False, True)]


def test_what_memory_is_worth():
    """The returns of whole episodes: with the cue 4, without it the mean of the two arms."""
    made, returns = TASKS.t_maze(5), {True: [], False: []}
    made.reset(seed=0)
    for _ in range(400):
        for remembered in returns:
            made.reset()
            arm = NORTH if made.north or not remembered else SOUTH
            returns[remembered].append(sum(made.step(a)[1] for a in [*[EAST] * 5, arm]))
    assert set(returns[True]) == {4.0}
    assert np.mean(returns[False]) == pytest.approx(1.95, abs=4 * 2.05 / 20)  # 4 sigma


# ---- hidden velocities ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "whole", "kept"),
    [
        ("cartpole_without_velocity", "CartPole-v1", [0, 2]),
        ("pendulum_without_velocity", "Pendulum-v1", [0, 1]),
    ],
)
def test_only_velocities_are_hidden(name, whole, kept):
    whole, hidden = gymnasium.make(whole), getattr(TASKS, name)()
    whole.action_space.seed(0)
    assert hidden.action_space == whole.action_space
    assert (hidden.observation_space.low == whole.observation_space.low[kept]).all()
    np.testing.assert_array_equal(hidden.reset(seed=3)[0], whole.reset(seed=3)[0][kept])
    over = False
    while not over:
        action = whole.action_space.sample()
        (seen, *rest), (all_of_it, *same) = hidden.step(action), whole.step(action)
        np.testing.assert_array_equal(seen, all_of_it[kept])
        assert rest == same
        over = rest[1] or rest[2]
    assert rest[1] == (whole.spec.id == "CartPole-v1")  # Pendulum's episodes are cut
