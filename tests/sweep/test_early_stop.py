"""Ending runs that are worse than what they cost."""

import numpy as np
import pytest

from puffer_mlx.sweep.observations import EXPENSIVE_FACTOR, MIN_RUNS, MIN_SECONDS, EarlyStop
from puffer_mlx.sweep.settings import SweepSettings

# Ten finished runs with scores 0 to 9 after 100 s, half of that after 50 s. The best cost 200 s.
CURVES = [np.array([[score / 2, 50.0], [score, 100.0]]) for score in range(9)]
CURVES.append(np.array([[4.5, 50.0], [9.0, 100.0], [9.0, 200.0]]))


def stops(cost, *scores, curves=CURVES, quantile=0.3):
    """Return True if early stopping ends a run after the last of these scores."""
    watch = EarlyStop(curves, quantile)
    return [watch.should_stop(cost, score) for score in scores][-1]


STOPS = {  # cost, score
    (100.0, 2.6): True,  # the quantile of 0 to 9 is 2.7
    (100.0, 2.8): False,
    (75.0, 2.0): True,  # between two points: three quarters of 2.7 is 2.025
    (75.0, 2.05): False,
    (150.0, 2.8): False,  # runs that ended before count with their last scores
    (EXPENSIVE_FACTOR * 200 + 1, 8.0): True,  # more than the best run cost: the best tenth
    (EXPENSIVE_FACTOR * 200 + 1, 8.2): False,
    (49.0, -50.0): False,  # nothing is known of the others there
}


def test_run_below_the_others_at_its_cost_stops():
    assert {case: stops(*case) for case in STOPS} == STOPS


def test_best_score_so_far_counts():
    assert not stops(100.0, 5.0, -50.0)


@pytest.mark.parametrize(("cost", "expected"), [(MIN_SECONDS - 1, False), (MIN_SECONDS, True)])
def test_no_run_stops_in_its_first_seconds(cost, expected):
    assert stops(cost, -50.0, curves=[curve * (1, 0.1) for curve in CURVES]) == expected


def test_few_runs_and_quantile_0_stop_nothing():
    assert stops(100.0, -50.0, curves=CURVES[-MIN_RUNS:])
    assert not stops(100.0, -50.0, curves=CURVES[-MIN_RUNS + 1 :])
    assert not stops(100.0, -50.0, quantile=0.0)


def test_protein_stops_no_run_and_random_does():
    assert SweepSettings(method="Protein", early_stop_quantile=0.2).stop_quantile == 0.0
    assert SweepSettings(method="Random").stop_quantile == 0.3
    assert SweepSettings(method="Random", early_stop_quantile=0.2).stop_quantile == 0.2
