"""`ppo/schedules.py` against hand arithmetic."""

import math

import pytest

from puffer_mlx.ppo.schedules import cosine


def test_cosine():
    assert cosine(0.1, 0.02, 0, 100) == 0.1
    assert cosine(0.1, 0.02, 50, 100) == pytest.approx(0.06)  # half way: the mean
    assert cosine(0.1, 0.02, 25, 100) == pytest.approx(0.02 + 0.04 * (1 + math.sqrt(0.5)))
    assert cosine(0.1, 0.02, 100, 100) == pytest.approx(0.02)
    assert cosine(0.1, 0.02, 150, 100) == pytest.approx(0.02)  # past the end
    assert cosine(0.1, 0.02, -5, 100) == 0.1
    assert cosine(0.1, 0.02, 7, 0) == 0.1  # no epochs
