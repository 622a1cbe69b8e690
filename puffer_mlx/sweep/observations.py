"""Observations of a sweep's runs: scores and costs, the Pareto front, and early stopping.

PufferLib 4.0's rule of early stopping ends no run there, because it looks the score up under a name
that its records don't have.
"""

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from puffer_mlx.sweep.settings import PERCENTILE, SweepSettings

SAME = 1e-6  # largest distance between equal vectors
BETTER = 1e-6  # smallest difference that makes a score better
LEAST_GAIN = 0.5  # score per cost, as fractions of their ranges, for the front's expensive end
NEAR_BEST = 0.98  # fraction of the range of scores; only points above it are pruned


class Observations:
    """Points of a sweep's runs, in the order in which they were added.

    Stored scores are higher for better runs: negated if lower is better, and logits for
    ``metric_distribution = percentile``.
    """

    def __init__(self, settings: SweepSettings) -> None:
        self._settings = settings
        self._vectors: list[np.ndarray] = []
        self._scores: list[float] = []
        self._costs: list[float] = []
        self._failures: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self._scores)

    def add(self, vector: np.ndarray, score: float, cost: float, failed: bool = False) -> None:
        """Add a point, or replace the one with the same vector.

        Args:
            vector: Vector of the values that were run, (d,).
            score: Score as recorded by the run.
            cost: Cost of the run at this point, in seconds.
            failed: True if there is no score. A score or a cost that isn't finite, or a cost of 0
                or less, is also a failure.
        """
        vector = np.array(vector, float)
        finite = math.isfinite(score) and math.isfinite(cost) and cost > 0
        if failed or not finite or not np.isfinite(vector).all():
            if np.isfinite(vector).all():
                self._failures.append(vector)
            return
        for at in self._equal_index(vector):
            self._scores[at] = self.stored_score(score)
            self._costs[at] = float(cost)
            return
        self._vectors.append(vector)
        self._scores.append(self.stored_score(score))
        self._costs.append(float(cost))

    def _equal_index(self, vector: np.ndarray) -> np.ndarray:
        """Return the index of an equal vector: at most one."""
        if not self._vectors:
            return np.array([], int)
        distances = np.linalg.norm(np.stack(self._vectors) - vector, axis=1)
        return np.flatnonzero(distances < SAME)[:1]

    def stored_score(self, score: float) -> float:
        """Return a recorded score as it is stored, up to the target score."""
        score = self._settings.sign * self._settings.worth(score)
        if self._settings.metric_distribution == PERCENTILE:
            part = min(max(score, 1e-9), 1 - 1e-9)
            score = min(max(math.log(part / (1 - part)), -5.0), 100.0)
        return self._settings.sign * float(score)

    @property
    def vectors(self) -> np.ndarray:
        """Vectors of the points, (n, d) float64."""
        return np.stack(self._vectors)

    @property
    def scores(self) -> np.ndarray:
        """Stored scores of the points, (n,) float64; higher is better."""
        return np.array(self._scores)

    @property
    def costs(self) -> np.ndarray:
        """Costs of the points in seconds, (n,) float64."""
        return np.array(self._costs)

    @property
    def failures(self) -> np.ndarray:
        """Vectors of failed runs, (m, d) float64."""
        return np.array(self._failures)


class Front(NamedTuple):
    """Pareto front: points without a cheaper one that is as good, from the cheapest to the best.

    Args:
        at: Indices of the points, (f,) int.
        scores: Scores, (f,) float64, increasing.
        costs: Costs, (f,) float64, increasing.
    """

    at: np.ndarray
    scores: np.ndarray
    costs: np.ndarray


def pareto_front(scores: np.ndarray, costs: np.ndarray) -> Front:
    """Return the Pareto front of (n,) scores (higher is better) and (n,) costs."""
    order = np.lexsort((-scores, costs))
    before = np.maximum.accumulate(np.concatenate([[-np.inf], scores[order][:-1]]))
    at = order[scores[order] > before + BETTER]
    return Front(at, scores[at], costs[at])


def pruned(front: Front) -> Front:
    """Return the front without an expensive end that gains little.

    From the expensive end, a point is removed if it gains less than ``LEAST_GAIN`` of score per
    cost, both as fractions of the front's ranges. Pruning stops where the next cheaper point is
    worse than ``NEAR_BEST``.
    """
    kept = len(front.at)
    scores = _as_part(front.scores)
    costs = _as_part(front.costs)
    while kept > 1 and scores[kept - 2] >= NEAR_BEST:
        gain = scores[kept - 1] - scores[kept - 2]
        if gain >= LEAST_GAIN * (costs[kept - 1] - costs[kept - 2]):
            break
        kept -= 1
    return Front(*(each[:kept] for each in front))


def _as_part(values: np.ndarray) -> np.ndarray:
    """Scale values from 0 (smallest) to 1 (largest)."""
    least = values.min(initial=np.inf)
    span = np.ptp(values) if len(values) else 0.0
    return (values - least) / (span or 1.0)


# ---- early stopping ------------------------------------------------------------------------------

MIN_RUNS = 6  # finished runs needed to stop another one
FREE_SECONDS = 10.0  # seconds before any stop
DEAR = 1.2  # from this multiple of the best run's cost on, DEAR_QUANTILE replaces the quantile
DEAR_QUANTILE = 0.9


class EarlyStop:
    """Decide when one run should stop: below a quantile of the finished runs' scores.

    The best score so far is compared with the other runs' scores at the same cost, interpolated
    between their points; a run that ended before counts with its last score. This is the rule of
    Optuna's ``PercentilePruner``, which doesn't take studies with two objectives. In addition, a
    run that costs clearly more than the best one must be among the best.

    Args:
        curves: Points of each finished run by cost, (k, 2) float64: score (higher is better) and
            cost in seconds.
        quantile: Value of ``early_stop_quantile``; 0 stops no run.
    """

    def __init__(self, curves: Sequence[np.ndarray], quantile: float) -> None:
        self._curves = curves
        self._quantile = quantile
        self._best = -math.inf

    def should_stop(self, cost: float, score: float) -> bool:
        """Return True if the run should stop now.

        Args:
            cost: Cost of the run so far, in seconds.
            score: Current score; higher is better.
        """
        self._best = max(self._best, score)
        if not self._quantile or cost < FREE_SECONDS:
            return False
        curves = [curve for curve in self._curves if curve[0, 1] <= cost]
        if len(curves) < MIN_RUNS:
            return False
        best_cost = max((curve[-1] for curve in curves), key=itemgetter(0))[1]
        quantile = DEAR_QUANTILE if cost > DEAR * best_cost else self._quantile
        scores = [np.interp(cost, curve[:, 1], curve[:, 0]) for curve in curves]
        return self._best < np.quantile(scores, quantile)
