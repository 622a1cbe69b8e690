"""squared against upstream's recorded numbers and its rules."""

from pathlib import Path

import numpy as np
from native_envs import Stepper, make, plays_the_recording

STAY, DOWN, UP, LEFT, RIGHT = range(5)


def test_recording_of_upstream_is_reproduced(fixtures: Path):
    """16 environments, 600 steps."""
    plays_the_recording(fixtures / "puffer4_env_squared.npz", "squared")


def walk(vec, moves: list[int]) -> tuple[Stepper, list[float]]:
    stepper = Stepper(vec)
    rewards = [float(stepper.step(move).rewards[0]) for move in moves]
    return stepper, rewards


def test_time_limit_ends_the_episode():
    """An episode allows 33 steps; step 34 fails even if it reaches the target."""
    with make("squared", total_agents=1) as vec:
        assert walk(vec, [STAY] * 34)[1] == [0.0] * 33 + [-1.0]
        assert vec.log()["episode_length"] == 34
    with make("squared", total_agents=1) as vec:  # it would have reached the target
        moves = [STAY] * 27 + [DOWN] * 2 + [LEFT] * 5
        assert walk(vec, moves)[1] == [0.0] * 33 + [-1.0]


def test_small_grid_leaves_the_rest_empty():
    with make("squared", total_agents=8, env={"size": 3}) as vec:
        stepper = Stepper(vec)
        rng = np.random.default_rng(0)
        for _ in range(50):
            rows = stepper.step(rng.integers(0, 5, 8))
            assert not rows.observations[:, 9:].any()
            assert ((rows.observations == 1).sum(1) == 1).all()
            assert ((rows.observations == 2).sum(1) == 1).all()
