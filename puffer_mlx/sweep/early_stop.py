"""Ending a run whose score is below what its cost bought in other runs.

A line of score over the logarithm of cost is fitted to the points of the runs before: a quantile's
regression (Koenker and Bassett, 1978), whose slope isn't negative. A run is ended when neither its
score nor the mean of its last scores reaches the line.

Source: PufferLib 4.0's rule; there it never ends a run, since it looks the score up under a name
that its records don't have.
"""

import math
from collections import deque
from typing import NamedTuple

import numpy as np

from puffer_mlx.sweep.observations import Observations, pareto_front, pruned

LEAST_POINTS = 30  # that a line is fitted to
WINDOW = 30  # scores whose mean counts
FREE_PART, FREE_SECONDS = 0.3, 10.0  # of the front's cost, and besides, in which nothing is ended
DEAR, NEAR_BEST = 1.2, 0.9  # above so much of it only what is near the best goes on


def quantile_line(
    costs: np.ndarray, scores: np.ndarray, quantile: float
) -> tuple[float, float] | None:
    """The line below which the quantile's part of scores lies: (slope, constant), over log cost.

    Exact: a best line goes through two points, or, with slope 0, is the scores' quantile.

    Args:
        costs: (n,) float64, above 0.
        scores: (n,) float64; more is better.
        quantile: between 0 and 1.

    Returns:
        None with fewer than ``LEAST_POINTS`` points.
    """
    if len(costs) < LEAST_POINTS:
        return None
    logs = np.log(costs)

    def constant(slope: float) -> float:
        return float(np.quantile(scores - slope * logs, quantile, method="inverted_cdf"))

    def loss(slope: float) -> float:
        rest = scores - slope * logs - constant(slope)
        return float(np.maximum(quantile * rest, (quantile - 1) * rest).sum())

    # The best loss for a slope is convex in it: look for it where slopes of pairs are.
    low, high = 0.0, float(np.ptp(scores) / max(np.ptp(logs), 1e-12)) * len(costs)
    for _ in range(200):
        third = (high - low) / 3
        if loss(low + third) <= loss(high - third):
            high -= third
        else:
            low += third
    slope = min((0.0, low, (low + high) / 2, high), key=loss)
    return slope, constant(slope)


class Threshold(NamedTuple):
    """Below which score a run isn't worth more. Scores are as `Observations` keeps them.

    Args:
        slope: of the line over the logarithm of cost, at least 0.
        constant: of the line.
        front_cost: what the best run that is worth its cost has cost, seconds.
        near_best: a score that few reach, which runs that are dearer than the front have to have;
            -inf: these are as all others.
    """

    slope: float
    constant: float
    front_cost: float
    near_best: float

    def at(self, cost: float) -> float:
        """The score that a run should have when it has cost so much, seconds."""
        if cost < FREE_PART * self.front_cost + FREE_SECONDS:
            return -math.inf
        if cost > DEAR * self.front_cost and self.near_best > -math.inf:
            return self.near_best
        return self.constant + self.slope * math.log(cost)


def threshold(
    observations: Observations, quantile: float, spares_dear: bool = False
) -> Threshold | None:
    """What the observations say of runs that follow; None if they are too few, or 0 is asked for.

    Args:
        observations: of the runs before, points of their curves as well as their ends.
        quantile: ``early_stop_quantile``.
        spares_dear: whether runs that are dearer than the front are ended like all others; else
            they are unless they are near the best.
    """
    if not quantile or len(observations) < LEAST_POINTS:
        return None
    scores, costs = observations.scores, observations.costs
    line = quantile_line(costs, scores, quantile)
    if line is None:
        return None
    front = pruned(pareto_front(scores, costs))
    best, worst = float(scores.max()), float(scores.min())
    near_best = -math.inf if spares_dear else worst + NEAR_BEST * (best - worst)
    return Threshold(*line, front_cost=float(front.costs[-1]), near_best=near_best)


class EarlyStop:
    """Watches one run and says when it should end.

    Args:
        threshold: of when the run began; None: it ends only by a number that isn't finite.
    """

    def __init__(self, threshold: Threshold | None) -> None:
        self.threshold = threshold
        self._scores: deque[float] = deque(maxlen=WINDOW)

    def should_stop(self, cost: float, score: float) -> bool:
        """Whether the run should end here.

        Args:
            cost: of the run so far, seconds.
            score: as it is logged now, with the sign and the form that `Observations` gives it.
        """
        if not math.isfinite(score):
            return True
        self._scores.append(score)
        mean = sum(self._scores) / len(self._scores)
        return self.threshold is not None and max(mean, score) < self.threshold.at(cost)
