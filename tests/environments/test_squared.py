"""squared against upstream's recorded numbers and spec 10.4 and 12.7."""

from pathlib import Path

import numpy as np
from native_envs import Stepper, make

STAY, DOWN, UP, LEFT, RIGHT = range(5)


def test_upstreams_recording(fixtures: Path):
    """16 environments, 600 steps: observations, rewards, terminals and the log, exactly."""
    recorded = np.load(fixtures / "puffer4_env_squared.npz", allow_pickle=False)
    env = dict(zip(recorded["env_kwargs_keys"], recorded["env_kwargs_vals"], strict=True))
    with make("squared", total_agents=16, num_buffers=2, num_threads=2, env=env) as vec:
        stepper = Stepper(vec)
        np.testing.assert_array_equal(stepper.rows.observations, recorded["obs"][0])
        for step, actions in enumerate(recorded["actions"]):
            rows = stepper.step(actions)
            np.testing.assert_array_equal(rows.observations, recorded["obs"][step + 1])
            np.testing.assert_array_equal(rows.rewards, recorded["rewards"][step])
            np.testing.assert_array_equal(rows.terminals, recorded["terminals"][step])
        log = vec.log()
    assert list(log) == recorded["log_keys"].tolist()
    # The recording has the means as float32, like ours.
    np.testing.assert_array_equal(list(log.values()), recorded["log_vals"])


def test_first_targets():
    with make("squared", total_agents=4) as vec:
        grids = Stepper(vec).rows.observations.reshape(4, 11, 11)
        assert [tuple(np.argwhere(grid == 2)[0].tolist()) for grid in grids] == [
            (7, 0),
            (1, 9),
            (1, 9),
            (0, 9),
        ]
        assert (grids[:, 5, 5] == 1).all() and (grids != 0).sum() == 8


def walk(vec, moves: list[int]) -> tuple[Stepper, list[float]]:
    stepper = Stepper(vec)
    rewards = [float(stepper.step(np.full((1, 1), move, np.float32)).rewards[0]) for move in moves]
    return stepper, rewards


def test_reaching_the_target():
    """From (5, 5) to (7, 0): two down and five left."""
    with make("squared", total_agents=1) as vec:
        stepper, rewards = walk(vec, [DOWN] * 2 + [LEFT] * 5)
        assert rewards == [0.0] * 6 + [1.0]
        assert stepper.rows.terminals[0] == 1
        grid = stepper.rows.observations.reshape(11, 11)
        assert grid[5, 5] == 1 and (grid != 0).sum() == 2  # the next episode already
        assert vec.log() == {
            "perf": 1.0,
            "score": 1.0,
            "episode_return": 1.0,
            "episode_length": 7.0,
            "n": 1.0,
        }


def test_leaving_the_grid():
    for move in UP, RIGHT, DOWN:
        with make("squared", total_agents=1) as vec:
            assert walk(vec, [move] * 6)[1] == [0.0] * 5 + [-1.0]
            log = vec.log()
            assert (log["perf"], log["score"], log["episode_length"]) == (0.0, -1.0, 6.0)


def test_running_out_of_time():
    """33 steps are allowed; the 34th fails, wherever it leads."""
    with make("squared", total_agents=1) as vec:
        assert walk(vec, [STAY] * 34)[1] == [0.0] * 33 + [-1.0]
        assert vec.log()["episode_length"] == 34
    with make("squared", total_agents=1) as vec:  # it would have reached the target
        moves = [STAY] * 27 + [DOWN] * 2 + [LEFT] * 5
        assert walk(vec, moves)[1] == [0.0] * 33 + [-1.0]


def test_a_small_grid_leaves_the_rest_empty():
    with make("squared", total_agents=8, env={"size": 3}) as vec:
        stepper = Stepper(vec)
        rng = np.random.default_rng(0)
        for _ in range(50):
            rows = stepper.step(rng.integers(0, 5, (8, 1)).astype(np.float32))
            assert not rows.observations[:, 9:].any()
            assert ((rows.observations == 1).sum(1) == 1).all()
            assert ((rows.observations == 2).sum(1) == 1).all()
