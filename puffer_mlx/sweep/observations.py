"""Results of a sweep's runs: scores and costs, their Pareto front, and early stopping.

PufferLib 4.0 has a rule of early stopping, too, but that never stops a run, because it reads the
score by a name that isn't in a run's log.
"""

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from puffer_mlx.sweep.settings import PERCENTILE, SweepSettings

EQUAL_DISTANCE = 1e-6  # maximum distance between equal vectors
MIN_IMPROVEMENT = 1e-6  # smallest difference that makes a score better
MIN_GAIN = 0.5  # fraction of the front's score range gained per fraction of its cost range
NEAR_BEST = 0.98  # fraction of the score range above which points may be pruned


class Observations:
    """Vectors, scores and costs that a sweep has observed, in the order of their addition.

    Each is a point of a run's learning curve.

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
        """Add a point of a run's curve to the observations, or replace that of the same vector.

        Args:
            vector: Vector of the run's values, (d,).
            score: Score from the run's log.
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
        if (index := self._equal_index(vector)) is not None:
            self._scores[index] = self.stored_score(score)
            self._costs[index] = float(cost)
            return
        self._vectors.append(vector)
        self._scores.append(self.stored_score(score))
        self._costs.append(float(cost))

    def _equal_index(self, vector: np.ndarray) -> int | None:
        """Return the index of the first observed vector that equals ``vector``, or None."""
        if not self._vectors:
            return None
        distances = np.linalg.norm(np.stack(self._vectors) - vector, axis=1)
        indices = np.flatnonzero(distances < EQUAL_DISTANCE)
        return int(indices[0]) if len(indices) else None

    def stored_score(self, score: float) -> float:
        """Convert a score from a run's log to the form in which observations store it.

        Stored scores are higher for better runs, limited to the target, and logits if configured.
        """
        sign = self._settings.sign
        limited = sign * self._settings.objective(score)  # not yet negated: a logit needs 0 to 1
        if self._settings.metric_distribution == PERCENTILE:
            fraction = min(max(limited, 1e-9), 1 - 1e-9)
            limited = min(max(math.log(fraction / (1 - fraction)), -5.0), 100.0)
        return sign * float(limited)

    @property
    def vectors(self) -> np.ndarray:
        """Vectors of parameters of the observed points, (n, d) float64."""
        return np.stack(self._vectors)

    @property
    def scores(self) -> np.ndarray:
        """Stored scores of the observed points, (n,) float64; higher is better."""
        return np.array(self._scores)

    @property
    def costs(self) -> np.ndarray:
        """Costs of the observed points in seconds, (n,) float64."""
        return np.array(self._costs)

    @property
    def failures(self) -> np.ndarray:
        """Vectors of parameters of the failed runs, (m, d) float64."""
        return np.array(self._failures)


class Front(NamedTuple):
    """Pareto front: points without a cheaper one that is as good, from the cheapest to the best.

    Args:
        indices: Indices of the points among all observations, (f,) int.
        scores: Scores of the points, (f,) float64, increasing.
        costs: Costs of the points, (f,) float64, increasing.
    """

    indices: np.ndarray
    scores: np.ndarray
    costs: np.ndarray


def pareto_front(scores: np.ndarray, costs: np.ndarray) -> Front:
    """Find the observations on the Pareto front of (n,) scores (higher is better) and (n,) costs.

    An observation joins the front if its score is better than that of every cheaper one by at least
    ``MIN_IMPROVEMENT``.
    """
    order = np.lexsort((-scores, costs))
    previous_best = np.maximum.accumulate(np.concatenate([[-np.inf], scores[order][:-1]]))
    indices = order[scores[order] > previous_best + MIN_IMPROVEMENT]
    return Front(indices, scores[indices], costs[indices])


def prune_front(front: Front) -> Front:
    """Remove the expensive end of a Pareto front if it gains little.

    From the expensive end, a point is removed if it gains less than ``MIN_GAIN`` of score per cost,
    both as fractions of the front's ranges. Pruning stops where the next cheaper point is worse
    than ``NEAR_BEST``.
    """
    size = len(front.indices)
    scores = _scale_to_unit(front.scores)
    costs = _scale_to_unit(front.costs)
    while size > 1 and scores[size - 2] >= NEAR_BEST:
        gain = scores[size - 1] - scores[size - 2]
        if gain >= MIN_GAIN * (costs[size - 1] - costs[size - 2]):
            break
        size -= 1
    return Front(*(each[:size] for each in front))


def _scale_to_unit(values: np.ndarray) -> np.ndarray:
    """Scale values linearly, the smallest to 0 and the largest to 1."""
    smallest = values.min(initial=np.inf)
    span = np.ptp(values) if len(values) else 0.0
    return (values - smallest) / (span or 1.0)


# ---- early stopping ------------------------------------------------------------------------------

MIN_RUNS = 6  # finished runs needed to stop another one
MIN_SECONDS = 10.0  # a run is never stopped earlier
EXPENSIVE_FACTOR = 1.2  # a run is expensive above this multiple of the best run's cost
EXPENSIVE_QUANTILE = 0.9  # replaces the quantile for an expensive run


class EarlyStop:
    """Rule that stops a bad run early: compare its score with other runs' at the same cost.

    A run is stopped if its best score so far is below a quantile of the finished runs' scores.
    Their scores are interpolated between their points; a run that ended before that cost counts
    with its last score. This is the rule of Optuna's ``PercentilePruner``, which doesn't support
    studies with two objectives. In addition, a run that costs clearly more than the best one must
    be among the best.

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
        """Return True if the run should stop now. Call it for every new point of the run's curve.

        Args:
            cost: Cost of the run so far, in seconds.
            score: Current score; higher is better.
        """
        self._best = max(self._best, score)
        if not self._quantile or cost < MIN_SECONDS:
            return False
        curves = [curve for curve in self._curves if curve[0, 1] <= cost]
        if len(curves) < MIN_RUNS:
            return False
        best_cost = max((curve[-1] for curve in curves), key=itemgetter(0))[1]
        quantile = EXPENSIVE_QUANTILE if cost > EXPENSIVE_FACTOR * best_cost else self._quantile
        scores = [np.interp(cost, curve[:, 1], curve[:, 0]) for curve in curves]
        return self._best < np.quantile(scores, quantile)
