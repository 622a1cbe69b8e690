"""Coordinates of values, by hand."""

import numpy as np
import pytest

from puffer_mlx.sweep.space import DISTRIBUTIONS, Parameter, Space

BY_HAND = [  # distribution, low, high, coordinate, value
    ("uniform", 0.0, 4.0, 0.5, 3.0),
    ("int_uniform", 1, 9, 0.3, 6),
    ("uniform_pow2", 16, 256, 0.4, 128),
    ("log_normal", 1e-4, 1.0, 0.5, 0.1),
    ("logit_normal", 0.9, 0.9999, 1 / 3, 0.999),
]


def one(distribution, low, high, whole=False, **more):
    return Parameter("train", distribution, distribution, low, high, whole=whole, **more)


def test_values_by_hand():
    assert {each[0] for each in BY_HAND} == set(DISTRIBUTIONS)
    for distribution, low, high, unit, value in BY_HAND:
        parameter = one(distribution, low, high)
        ends = [parameter.to_value(unit) for unit in (-3, -1, 1, 7)]
        assert ends == [low, low, high, high]
        assert [parameter.to_unit(end) for end in (low, high)] == pytest.approx([-1, 1])
        assert parameter.to_value(unit) == pytest.approx(value, rel=1e-12)
        back = parameter.to_unit(parameter.to_value(unit))
        assert parameter.to_value(back) == pytest.approx(value)


def test_whole_values_are_ints_within_the_range():
    layers = one("uniform", 1, 8, whole=True)
    values = [layers.to_value(z) for z in np.linspace(-1, 1, 50)]
    assert {type(value) for value in values} == {int} and set(values) == set(range(1, 9))
    assert one("int_uniform", 0.6, 2.4, whole=True).to_value(-1) == 1
    assert one("log_normal", 3e7, 1e11, whole=True).to_value(1) == 10**11


def test_values_beyond_the_range_have_their_place():
    rate = one("log_normal", 1e-3, 1e-1)
    assert rate.to_unit(1.0) == pytest.approx(2.0) and rate.to_unit(1e-5) == pytest.approx(-3.0)
    assert rate.to_unit(0.0) == -1.0 and one("logit_normal", 0.5, 0.9).to_unit(1.0) == 1.0


def test_vectors_are_rounded_as_they_are_run():
    space = Space([one("uniform", 0, 4, whole=True), one("log_normal", 1e-3, 1e-1)])
    vectors = np.array([[0.1, 0.3], [0.6, -1.0]])
    run = space.as_run(vectors)
    np.testing.assert_allclose(run, [[0.0, 0.3], [0.5, -1.0]], atol=1e-12)
    for vector, rounded in zip(vectors, run, strict=True):
        np.testing.assert_allclose(space.to_unit(space.to_values(vector)), rounded, atol=1e-12)


def test_boxes_are_around_their_centres_and_within_the_space():
    space = Space([one("uniform", 0, 1, scale=0.1), one("uniform", 0, 1, scale=2.0)])
    drawn = space.around(np.tile([0.95, -3.0], (400, 1)), np.random.default_rng(0))
    assert drawn[:, 0].min() >= 0.85 and drawn[:, 0].max() == 1.0
    assert drawn[:, 1].min() == -1.0 and 0.9 < drawn[:, 1].max() <= 1.0


def test_few_coordinates_leave_their_centres_and_not_far():
    """At least one does; a probability and a size for each vector."""
    space = Space([one("uniform", 0, 1, scale=0.4)] * 5)
    centres = np.full((3000, 5), 0.1)
    moved = np.repeat([[0.0], [0.5], [1.0]], 1000, axis=0)
    drawn = space.around(centres, np.random.default_rng(0), moved, np.where(moved == 0.5, 0.25, 1))
    steps = (drawn - 0.1).reshape(3, 1000, 5)
    count = (steps != 0).sum(-1)
    assert {*count[0]} == {1} and {*count[1]} == {1, 2, 3, 4, 5} and {*count[2]} == {5}
    assert 2.85 < count[1].mean() < 3.15  # half of five, and one that may be among them
    for reach, group in zip((0.4, 0.1, 0.4), steps, strict=True):
        assert 0.98 * reach < np.abs(group).max() <= reach


def test_the_default_is_the_configurations_own():
    space = Space([one("uniform", 0, 4, default=3.0), one("log_normal", 1e-3, 1e-1)])
    assert space.default.tolist() == [0.5, 0.0] and space.cost is None
