"""Sobol's sequence: every prefix of 2^k points has one in each of 2^k parts of every axis."""

import numpy as np
import pytest

from puffer_mlx.sweep.methods import sobol


@pytest.mark.parametrize("points", [1, 64])
def test_axis_is_filled_evenly(points):
    sequence = sobol(points, 35, np.random.default_rng(1))
    assert sequence.shape == (points, 35) and sequence.min() >= 0 and sequence.max() < 1
    for axis in sequence.T:
        assert sorted((axis * points).astype(int)) == list(range(points))


def test_axes_differ():
    sequence = sobol(64, 35, np.random.default_rng(1))
    assert np.abs(np.corrcoef(sequence.T) - np.eye(35)).max() < 0.99


def test_two_axes_together_are_filled_evenly():
    """Two of 64 points lie in each box of a 32nd, for polynomials of degrees 1 and 2."""
    x, y = sobol(64, 3, np.random.default_rng(1))[:, 1:].T
    for wide in range(6):
        boxes = (x * 2**wide).astype(int) * 2 ** (5 - wide) + (y * 2 ** (5 - wide)).astype(int)
        assert np.bincount(boxes, minlength=32).tolist() == [2] * 32


def test_seed_changes_the_sequence_and_length_does_not():
    one = sobol(8, 5, np.random.default_rng(1))
    assert np.array_equal(sobol(16, 5, np.random.default_rng(1))[:8], one)
    assert not np.array_equal(sobol(8, 5, np.random.default_rng(2)), one)
