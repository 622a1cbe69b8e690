"""Observations of a sweep's runs: scores and costs, the Pareto front, and early stopping.

A run is ended early if its score is too low for its cost. A line of score over log cost is fitted
to the points of earlier runs by quantile regression (Koenker and Bassett, 1978) with a slope of at
least 0. A run ends when its score and the mean of its last scores are both below the line.

Source: PufferLib 4.0's rule. It never ends a run there, because it looks the score up under a name
that its records don't have.
"""

import math
from collections import deque
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
        for at in self._alike(vector):
            self._scores[at], self._costs[at] = self.entered(score), float(cost)
            return
        self._vectors.append(vector)
        self._scores.append(self.entered(score))
        self._costs.append(float(cost))

    def _alike(self, vector: np.ndarray) -> np.ndarray:
        """Return the index of an equal vector: at most one."""
        if not self._vectors:
            return np.array([], int)
        distances = np.linalg.norm(np.stack(self._vectors) - vector, axis=1)
        return np.flatnonzero(distances < SAME)[:1]

    def entered(self, score: float) -> float:
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
    least, span = values.min(initial=np.inf), np.ptp(values) if len(values) else 0.0
    return (values - least) / (span or 1.0)


# ---- early stopping ------------------------------------------------------------------------------

LEAST_POINTS = 30  # points needed to fit a line
WINDOW = 30  # scores in the mean
FREE_PART, FREE_SECONDS = 0.3, 10.0  # fraction of the front's cost, plus seconds, before any stop
DEAR, DEAR_SCORE = 1.2, 0.9  # above this multiple of the front's cost, a run must be near the best


def quantile_line(
    costs: np.ndarray, scores: np.ndarray, quantile: float
) -> tuple[float, float] | None:
    """Fit the line of a quantile of scores over log cost.

    Exact: an optimal line goes through two points, or has slope 0 at the quantile of the scores.

    Args:
        costs: Costs, (n,) float64, above 0.
        scores: Scores, (n,) float64; higher is better.
        quantile: Quantile, between 0 and 1.

    Returns:
        Slope and constant; None with fewer than ``LEAST_POINTS`` points.
    """
    if len(costs) < LEAST_POINTS:
        return None
    logs = np.log(costs)

    def constant(slope: float) -> float:
        return float(np.quantile(scores - slope * logs, quantile, method="inverted_cdf"))

    def loss(slope: float) -> float:
        rest = scores - slope * logs - constant(slope)
        return float(np.maximum(quantile * rest, (quantile - 1) * rest).sum())

    # Ternary search, as the loss is convex in the slope.
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
    """Score below which a run is stopped, as a function of its cost.

    Scores are as stored by `Observations`.

    Args:
        slope: Slope of the line over log cost, at least 0.
        constant: Constant of the line.
        front_cost: Cost of the best run of the pruned front, in seconds.
        near_best: Score required of runs that cost more than the front.
    """

    slope: float
    constant: float
    front_cost: float
    near_best: float

    def at(self, cost: float) -> float:
        """Return the lowest acceptable score at a cost in seconds."""
        if cost < FREE_PART * self.front_cost + FREE_SECONDS:
            return -math.inf
        if cost > DEAR * self.front_cost:
            return self.near_best
        return self.constant + self.slope * math.log(cost)


def threshold(observations: Observations, quantile: float) -> Threshold | None:
    """Return the threshold of new runs, or None with too few observations or quantile 0.

    Args:
        observations: Points of earlier runs, along their curves and at their ends.
        quantile: Value of ``early_stop_quantile``.
    """
    if not quantile or len(observations) < LEAST_POINTS:
        return None
    scores, costs = observations.scores, observations.costs
    line = quantile_line(costs, scores, quantile)
    if line is None:
        return None
    front = pruned(pareto_front(scores, costs))
    best, worst = float(scores.max()), float(scores.min())
    near_best = worst + DEAR_SCORE * (best - worst)
    return Threshold(*line, front_cost=float(front.costs[-1]), near_best=near_best)


class EarlyStop:
    """Decide when one run should stop.

    Args:
        threshold: Threshold at the start of the run; None to stop only for a score that isn't
            finite.
    """

    def __init__(self, threshold: Threshold | None) -> None:
        self.threshold = threshold
        self._scores: deque[float] = deque(maxlen=WINDOW)

    def should_stop(self, cost: float, score: float) -> bool:
        """Return True if the run should stop now.

        Args:
            cost: Cost of the run so far, in seconds.
            score: Current score, as stored by `Observations`.
        """
        if not math.isfinite(score):
            return True
        self._scores.append(score)
        mean = sum(self._scores) / len(self._scores)
        return self.threshold is not None and max(mean, score) < self.threshold.at(cost)
