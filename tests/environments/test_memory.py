"""memory against its rules."""

from typing import Any

import numpy as np
import pytest
from native_envs import Stepper

from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.vec import NativeVec

FOLDER = find_environment("memory")


def make(agents: int, length: float, **keywords: Any) -> NativeVec:
    return NativeVec(FOLDER, total_agents=agents, env={"length": length}, **keywords)


def answer(cue: np.ndarray) -> np.ndarray:
    """Return the right actions (N, 1) for cues (N,)."""
    return (cue > 0).astype(np.float32)[:, None]


def cues_of(agents: int, episodes: int, **keywords: Any) -> np.ndarray:
    """Return cues (episodes, agents)."""
    with make(agents, 1, **keywords) as vec:
        stepper = Stepper(vec)
        seen = []
        for _ in range(episodes):
            seen.append(stepper.rows.observations[:, 0].copy())
            stepper.step(0)
    return np.array(seen)


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


def test_cues_are_random_and_independent():
    """Cues come from rand_r; even numbers are -1."""
    cues = cues_of(agents=400, episodes=200)
    first = [  # rand_r's results for seeds 0 to 3
        *([1012484, 1716955679, 1792309082], [476707713, 1186278907, 505671508]),
        *([952403967, 656651735, 1367566158], [1430195325, 125974964, 80928584]),
    ]
    np.testing.assert_array_equal(cues[:3, :4].T, [[2 * (r % 2) - 1 for r in row] for row in first])
    sigma = cues.size**-0.5
    assert abs(cues.mean()) < 4 * sigma
    for lag in range(1, 7):  # nothing to be learned from the cues before, which memory may hold
        assert abs((cues[lag:] * cues[:-lag]).mean()) < 4 * sigma
    assert (np.abs(cues.mean(0)) < 5 * 200**-0.5).all()
