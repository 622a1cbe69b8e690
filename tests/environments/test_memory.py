"""memory against its rules."""

import numpy as np
import pytest
from native_envs import Stepper, rand_r

from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.vec import NativeVec

FOLDER = find_environment("memory")


def make(agents: int, length: float) -> NativeVec:
    return NativeVec(FOLDER, total_agents=agents, env={"length": length})


def answer(cue: np.ndarray) -> np.ndarray:
    """Return the rewarded actions (N, 1) of the environment memory for its cues (N,)."""
    return (cue > 0).astype(np.float32)[:, None]


@pytest.mark.parametrize(("length", "right"), [(1, True), (10, True), (10, False)])
def test_only_the_last_action_must_name_the_cue(length: int, right: bool):
    n, episodes = 32, 5
    with make(n, length) as vec:
        stepper = Stepper(vec)
        for _ in range(episodes):
            cue = stepper.rows.observations[:, 0].copy()
            assert set(cue) == {-1, 1}
            for tick in range(1, length + 1):
                # All actions but the last are wrong where that is right: they must not count.
                rows = stepper.step(answer(cue) if right == (tick == length) else answer(-cue))
                over = tick == length
                assert (rows.terminals == over).all()
                assert (rows.rewards == (over and right)).all()
                if not over:
                    assert not rows.observations.any()
        assert vec.log() == {"score": float(right), "n": float(n * episodes)}


def test_cues_are_the_last_bits_of_rand_r():
    """Even numbers are -1; agent i has seed i."""
    states = list(range(40))
    with make(40, 1) as vec:
        stepper = Stepper(vec)
        for _ in range(20):
            drawn = [rand_r(state) for state in states]
            expected = [2 * (number % 2) - 1 for _, number in drawn]
            np.testing.assert_array_equal(stepper.rows.observations[:, 0], expected)
            states = [state for state, _ in drawn]
            stepper.step(0)
