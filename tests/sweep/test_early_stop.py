"""Ending runs that are worse than what they cost."""

from dataclasses import replace

import numpy as np
import pytest

from puffer_mlx.sweep.observations import (
    EarlyStop,
    Observations,
    Threshold,
    quantile_line,
    threshold,
)
from puffer_mlx.sweep.settings import SweepSettings

LINE = Threshold(slope=1.0, constant=0.0, front_cost=1000.0, near_best=9.0)


def pinball(slope, constant, logs, scores, quantile):
    rest = scores - slope * logs - constant
    return np.maximum(quantile * rest, (quantile - 1) * rest).sum()


@pytest.mark.parametrize("quantile", [0.1, 0.5])
def test_line_is_the_best_of_those_through_two_points(quantile):
    draw = np.random.default_rng(2)
    logs = draw.uniform(0, 5, 40)
    scores = 2 * logs + draw.exponential(3, 40)
    line = quantile_line(np.exp(logs), scores, quantile)
    assert line
    slope, constant = line
    pairs = [(i, j) for i in range(40) for j in range(i)]
    slopes = [(scores[i] - scores[j]) / (logs[i] - logs[j]) for i, j in pairs]
    lines = [(s, scores[i] - s * logs[i]) for s, (i, _) in zip(slopes, pairs, strict=True) if s > 0]
    best = min(pinball(*line, logs, scores, quantile) for line in lines)
    assert pinball(slope, constant, logs, scores, quantile) == pytest.approx(best, rel=1e-6)
    assert np.mean(scores < slope * logs + constant - 1e-6) <= quantile


def test_slope_is_not_negative_and_few_points_say_nothing():
    costs = np.linspace(1, 100, 60)
    line = quantile_line(costs, -costs, 0.3)
    assert line and line[0] == 0 and line[1] == pytest.approx(np.quantile(-costs, 0.3), abs=2)
    assert quantile_line(np.ones(29), np.ones(29), 0.3) is None


def test_threshold_by_hand():
    """Free to 310 s; from 1200 s on near the best."""
    at = [LINE._replace(near_best=9.0).at(cost) for cost in (309.0, 311.0, 1201.0)]
    assert at == [-np.inf, pytest.approx(np.log(311.0)), 9.0]


def test_threshold_of_observations():
    seen, draw = Observations(replace(SweepSettings(), goal="minimize")), np.random.default_rng(1)
    for _ in range(60):
        cost = np.exp(draw.uniform(0, 5))
        seen.add(draw.uniform(-1, 1, 3), -np.log(cost) + draw.uniform(0, 2), cost)
    plain = threshold(seen, 0.3)
    assert plain and plain.slope == pytest.approx(1.0, abs=0.4)
    assert plain.near_best > seen.scores.min()
    assert threshold(seen, 0.0) is None


def test_protein_ends_no_run():
    for method, usual, asked in ("Protein", 0.0, 0.0), ("Random", 0.3, 0.2):
        assert SweepSettings(method=method).stop_quantile == usual
        assert SweepSettings(method=method, early_stop_quantile=0.2).stop_quantile == asked


def test_a_run_below_the_line_ends_and_one_above_goes_on():
    """Its score now, or the mean of its last ones."""
    for line, cost, score, ends in (
        (LINE, 100.0, -50.0, False),
        (LINE, 400.0, 5.0, True),
        (LINE, 400.0, 6.5, False),
        (None, 1.0, float("nan"), True),  # without any threshold
        (None, 1.0, -1e9, False),
    ):
        assert EarlyStop(line).should_stop(cost, score) == ends
    stop = EarlyStop(LINE)
    assert not any(stop.should_stop(400.0, score) for score in [8.0] * 29 + [0.0])
    assert [stop.should_stop(400.0, 0.0) for _ in range(30)][-1]
