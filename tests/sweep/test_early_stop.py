"""Ending runs that are worse than what they cost."""

from dataclasses import replace

import numpy as np
import pytest

from puffer_mlx.sweep.early_stop import EarlyStop, Threshold, quantile_line, threshold
from puffer_mlx.sweep.observations import Observations
from puffer_mlx.sweep.settings import SweepSettings

LINE = Threshold(slope=1.0, constant=0.0, front_cost=1000.0, near_best=9.0)


def pinball(slope, constant, logs, scores, quantile):
    rest = scores - slope * logs - constant
    return np.maximum(quantile * rest, (quantile - 1) * rest).sum()


@pytest.mark.parametrize("quantile", [0.1, 0.3, 0.5])
def test_line_is_the_best_of_those_through_two_points(quantile):
    draw = np.random.default_rng(2)
    logs = draw.uniform(0, 5, 40)
    scores = 2 * logs + draw.exponential(3, 40)
    line = quantile_line(np.exp(logs), scores, quantile)
    assert line
    slope, constant = line
    found = pinball(slope, constant, logs, scores, quantile)
    pairs = [(i, j) for i in range(40) for j in range(i)]
    slopes = [(scores[i] - scores[j]) / (logs[i] - logs[j]) for i, j in pairs]
    lines = [(s, scores[i] - s * logs[i]) for s, (i, _) in zip(slopes, pairs, strict=True) if s > 0]
    best = min(pinball(*line, logs, scores, quantile) for line in lines)
    assert found == pytest.approx(best, rel=1e-6)
    assert np.mean(scores < slope * logs + constant - 1e-6) <= quantile


def test_slope_is_not_negative_and_few_points_say_nothing():
    costs = np.linspace(1, 100, 60)
    line = quantile_line(costs, -costs, 0.3)
    assert line and line[0] == 0 and line[1] == pytest.approx(np.quantile(-costs, 0.3), abs=2)
    assert quantile_line(np.ones(29), np.ones(29), 0.3) is None


def test_threshold_by_hand():
    assert LINE.at(309.0) == -np.inf
    assert LINE.at(311.0) == pytest.approx(np.log(311.0))
    assert LINE.at(1201.0) == 9.0


def test_dear_runs_are_spared_where_they_are_to_find_out_what_more_cost_buys():
    spared = LINE._replace(near_best=-np.inf)
    assert spared.at(1201.0) == pytest.approx(np.log(1201.0))
    assert spared.at(311.0) == LINE.at(311.0) and spared.at(309.0) == -np.inf
    seen, draw = Observations(SweepSettings()), np.random.default_rng(1)
    for _ in range(40):
        seen.add(draw.uniform(-1, 1, 3), draw.uniform(), draw.uniform(1, 100))
    plain, without = threshold(seen, 0.3), threshold(seen, 0.3, spares_dear=True)
    assert plain and plain.near_best > 0.8 and without == plain._replace(near_best=-np.inf)


def test_protein_ends_no_run_unless_it_is_asked_to():
    assert SweepSettings(method="Protein").stop_quantile == 0
    assert SweepSettings(method="Random").stop_quantile == 0.3
    for asked in 0.0, 0.2:
        for method in "Protein", "Random":
            assert SweepSettings(method=method, early_stop_quantile=asked).stop_quantile == asked
    assert (
        SweepSettings(method="Protein").spares_dear and not SweepSettings(method="TPE").spares_dear
    )


def test_a_run_below_the_line_ends_and_one_above_goes_on():
    assert not EarlyStop(LINE).should_stop(100.0, -50.0)
    assert EarlyStop(LINE).should_stop(400.0, 5.0)
    assert not EarlyStop(LINE).should_stop(400.0, 6.5)
    assert EarlyStop(None).should_stop(1.0, float("nan"))  # without any threshold
    assert not EarlyStop(None).should_stop(1.0, -1e9)


def test_the_mean_of_the_last_scores_counts_too():
    stop = EarlyStop(LINE)
    for _ in range(29):
        assert not stop.should_stop(400.0, 8.0)
    assert not stop.should_stop(400.0, 0.0)
    assert [stop.should_stop(400.0, 0.0) for _ in range(30)][-1]


def test_threshold_of_observations():
    seen = Observations(replace(SweepSettings(), goal="minimize"))
    draw = np.random.default_rng(1)
    for _ in range(60):
        cost = np.exp(draw.uniform(0, 5))
        seen.add(draw.uniform(-1, 1, 3), -np.log(cost) + draw.uniform(0, 2), cost)
    found = threshold(seen, 0.3)
    assert found and found.slope == pytest.approx(1.0, abs=0.4)
    assert threshold(seen, 0.0) is None
