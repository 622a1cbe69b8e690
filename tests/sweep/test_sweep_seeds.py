"""Runs that are judged by several seeds: what they come to, and which are beaten."""

import math

import pytest
from swept import settings

from puffer_mlx.sweep.curve import Judged, Point, as_one, combined, is_beaten, noise
from puffer_mlx.sweep.observations import Observations


def test_scores_of_seeds_as_one():
    assert as_one([1, 2, 6], "mean") == 3 and as_one([1, 2, 6], "median") == 2
    assert as_one([1, 2, 6], "worst") == 1 and as_one([1, 2, 6], "worst", sign=-1) == 6


def test_curves_are_matched_from_their_ends():
    short = [Point(4, 10, 100), Point(6, 20, 200)]
    long = [Point(0, 4, 40), Point(2, 12, 100), Point(3, 24, 200)]
    assert combined([short, long], "mean") == [Point(3, 11, 100), Point(4.5, 22, 200)]
    assert combined([short, long], "worst") == [Point(2, 11, 100), Point(3, 22, 200)]


def test_the_noise_seen_is_the_median_of_deviations():
    assert noise([Judged([1], 1)]) == 0
    # Deviations of two numbers are their distance over the square root of two.
    several = [Judged([1], 1), Judged([0, 2], 1), Judged([0, 4], 1), Judged([0, 100], 1)]
    assert noise(several) == pytest.approx(4 / math.sqrt(2))


def test_what_is_beaten():
    rivals = [Judged([7.0, 9.0], 5.0), Judged([1.0], 1.0)]
    for score, cost, beaten in (
        (9.0, 10, False),  # better
        (7.0, 10, False),  # 8 is within the noise
        (6.5, 10, True),
        (6.5, 4, False),  # nothing is as cheap
        (6.5, 5, True),
    ):
        assert is_beaten(Judged([score], cost), rivals, "mean", noise=1.5) == beaten


def test_what_is_enough_ends_the_search_for_more():
    rivals, less = [Judged([860.0, 860.0], 50.0)], [Judged([860.0, 859.0], 50.0)]
    assert is_beaten(Judged([860.0], 60.0), rivals, "worst", 5.0, enough=860.0)
    assert not is_beaten(Judged([860.0], 60.0), less, "worst", 5.0, enough=860.0)
    assert not is_beaten(Judged([860.0], 40.0), rivals, "worst", 5.0, enough=860.0)


def test_a_score_above_the_target_counts_as_the_target():
    how = settings(target_score=5.0)
    assert [how.worth(x) for x in (4, 5, 9)] == [4, 5, 5]
    less = settings(target_score=5.0, goal="minimize")
    assert [less.worth(x) for x in (9, 5, 4)] == [-9, -5, -5]
    assert [Observations(less).entered(x) for x in (9, 4)] == [-9, -5]
    logit = settings(target_score=0.5, metric_distribution="percentile")
    assert Observations(logit).entered(0.9) == Observations(logit).entered(0.5) == 0
