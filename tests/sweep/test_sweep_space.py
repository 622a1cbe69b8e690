"""Values and their coordinates: -1 to 1 over a parameter's range."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puffer_mlx.sweep.space import DISTRIBUTIONS, Parameter, Space

BY_HAND = [  # distribution, low, high, coordinate, value
    ("uniform", 0.0, 4.0, 0.5, 3.0),
    ("int_uniform", 1, 9, 0.3, 6),
    ("uniform_pow2", 16, 256, 0.4, 128),
    ("log_normal", 1e-4, 1.0, 0.5, 0.1),
    ("logit_normal", 0.9, 0.9999, 1 / 3, 0.999),
]


def one(distribution, low, high, integer=False, **more):
    return Parameter("train", distribution, distribution, low, high, integer=integer, **more)


@pytest.mark.parametrize(("distribution", "low", "high", "unit", "value"), BY_HAND)
def test_value_of_a_coordinate_is_that_by_hand(distribution, low, high, unit, value):
    assert {each[0] for each in BY_HAND} == set(DISTRIBUTIONS)
    assert one(distribution, low, high).to_value(unit) == pytest.approx(value, rel=1e-12)


@st.composite
def parameters(draw):
    distribution = draw(st.sampled_from(sorted(DISTRIBUTIONS)))
    if distribution == "logit_normal":
        low, high = draw(st.floats(0.01, 0.5)), draw(st.floats(0.6, 0.9999))
    elif distribution == "uniform_pow2":
        low = 2 ** draw(st.integers(0, 10))
        high = low * 2 ** draw(st.integers(1, 10))
    else:
        low = draw(st.floats(1e-3, 10))
        high = low + draw(st.floats(1.5, 1e4))
    integer = draw(st.booleans()) and distribution != "logit_normal"
    return one(distribution, low, high, integer or distribution == "int_uniform")


@given(parameters(), st.floats(-3, 3))
@settings(max_examples=80)
def test_values_lie_in_the_range_and_have_one_coordinate(parameter, unit):
    value = parameter.to_value(unit)
    assert isinstance(value, int) or not parameter.integer
    assert parameter.low - 1e-9 <= value <= parameter.high + 1e-9
    assert parameter.to_value(parameter.to_coordinate(value)) == pytest.approx(value)


def test_values_beyond_the_range_have_their_place():
    rate = one("log_normal", 1e-3, 1e-1)
    assert rate.to_coordinate(1.0) == pytest.approx(2.0) and rate.to_coordinate(
        1e-5
    ) == pytest.approx(-3.0)
    assert (
        rate.to_coordinate(0.0) == -1.0 and one("logit_normal", 0.5, 0.9).to_coordinate(1.0) == 1.0
    )


def test_vectors_are_rounded_as_they_are_run():
    space = Space([one("uniform", 0, 4, integer=True), one("log_normal", 1e-3, 1e-1)])
    vectors = np.array([[0.1, 0.3], [0.6, -1.0]])
    run = space.round_vectors(vectors)
    np.testing.assert_allclose(run, [[0.0, 0.3], [0.5, -1.0]], atol=1e-12)
    for vector, rounded in zip(vectors, run, strict=True):
        np.testing.assert_allclose(
            space.to_coordinate(space.to_values(vector)), rounded, atol=1e-12
        )


def test_candidates_lie_around_their_centres_and_within_the_space():
    space = Space([one("uniform", 0, 1, scale=0.1), one("uniform", 0, 1, scale=2.0)])
    drawn = space.sample_around(np.tile([0.95, -3.0], (400, 1)), np.random.default_rng(0))
    assert drawn[:, 0].min() >= 0.85 and drawn[:, 0].max() == 1.0
    assert drawn[:, 1].min() == -1.0 and 0.9 < drawn[:, 1].max() <= 1.0


def test_default_is_the_configurations_value():
    space = Space([one("uniform", 0, 4, default=3.0), one("log_normal", 1e-3, 1e-1)])
    assert space.default.tolist() == [0.5, 0.0] and space.timesteps_index is None
