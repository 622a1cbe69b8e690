"""benchmarks/partial_environments.py: the rules of its tasks."""

from typing import Any

import numpy as np
import pytest
from native_envs import Stepper
from running import ROOT, module_of

from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.vec import NativeVec

gymnasium = pytest.importorskip("gymnasium")

TASKS = module_of(ROOT / "benchmarks" / "partial_environments.py")
START = {True: [0, 1, 1], False: [1, 1, 0]}  # by whether the goal is in the north
CORRIDOR, JUNCTION = [1, 0, 1], [0, 1, 0]
NORTH, EAST, SOUTH, WEST = range(4)


@pytest.mark.parametrize(("length", "right"), [(1, True), (10, False)])
def test_memory_has_the_rules_of_the_environment_in_c(length, right):
    twin = TASKS.memory(length)
    cues = set()
    with NativeVec(find_environment("memory"), total_agents=1, env={"length": length}) as native:
        stepper = Stepper(native)
        for episode in range(20):
            cue = float(stepper.rows.observations[0, 0])
            cues.add(cue)
            twin.reset(seed=episode)
            twin.cue = int(cue)
            for tick in range(1, length + 1):
                action = int((cue > 0) == (right == (tick == length)))
                rows = stepper.step(np.array([[action]], np.float32))
                seen, reward, over, cut, _ = twin.step(action)
                assert (reward, over, cut) == (rows.rewards[0], rows.terminals[0], False)
                if not over:
                    assert seen == rows.observations[0] == 0
    assert cues == {-1, 1}


def maze(north: bool, length: int) -> tuple[Any, list[float]]:
    """Return a T-maze whose goal is in the north or south, and its first observation."""
    made = TASKS.t_maze(length)
    for seed in range(100):
        seen = made.reset(seed=seed)[0].tolist()
        if made.north == north:
            return made, seen
    raise AssertionError("all goals are on one side")


@pytest.mark.parametrize(("north", "length", "right"), [(True, 1, True), (False, 7, False)])
def test_maze_rewards_only_the_arm_that_its_start_shows(north, length, right):
    made, seen = maze(north, length)
    assert seen == START[north]
    for wall in NORTH, SOUTH, WEST:
        seen, reward, over, cut, _ = made.step(wall)
        assert (seen.tolist(), reward, over, cut) == (START[north], -0.1, False, False)
    for place in range(1, length + 1):
        seen, reward, over, cut, _ = made.step(EAST)
        assert seen.tolist() == (JUNCTION if place == length else CORRIDOR)
        assert (reward, over, cut) == (0, False, False)
    assert made.step(EAST)[1:4] == (-0.1, False, False)  # a wall
    assert made.step(WEST)[1] == 0
    made.step(EAST)
    reward = 4 if right else -0.1
    assert made.step(NORTH if north == right else SOUTH)[1:4] == (reward, True, False)


def test_maze_ends_after_a_time_limit():
    made, _ = maze(True, 3)
    cuts = [made.step(WEST)[2:4] for _ in range(60)]
    assert cuts == [(False, False)] * 59 + [(False, True)]


@pytest.mark.parametrize(
    ("name", "whole", "visible"),
    [
        ("cartpole_without_velocity", "CartPole-v1", [0, 2]),
        ("pendulum_without_velocity", "Pendulum-v1", [0, 1]),
    ],
)
def test_only_velocities_are_hidden(name, whole, visible):
    whole = gymnasium.make(whole)
    hidden = getattr(TASKS, name)()
    whole.action_space.seed(0)
    assert hidden.action_space == whole.action_space
    np.testing.assert_array_equal(hidden.reset(seed=3)[0], whole.reset(seed=3)[0][visible])
    ended = False
    while not ended:
        action = whole.action_space.sample()
        seen, *rest = hidden.step(action)
        everything, *same = whole.step(action)
        np.testing.assert_array_equal(seen, everything[visible])
        assert rest == same
        ended = rest[1] or rest[2]
