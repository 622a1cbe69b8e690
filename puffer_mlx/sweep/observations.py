"""What a sweep's runs came to, which of them are best, and which aren't worth going on with.

Points are vectors with their scores and costs. A run is ended early if its score is below what its
cost bought in other runs: a line of score over the logarithm of cost is fitted to the points of the
runs before, a quantile's regression (Koenker and Bassett, 1978) whose slope isn't negative, and a
run is ended when neither its score nor the mean of its last scores reaches the line.

Source: PufferLib 4.0's rule; there it never ends a run, since it looks the score up under a name
that its records don't have.
"""

import math
from collections import deque
from typing import NamedTuple

import numpy as np

from puffer_mlx.sweep.settings import PERCENTILE, SweepSettings

SAME = 1e-6  # vectors that are nearer to one another are the same
BETTER = 1e-6  # a score that isn't more than this above another is no better
LEAST_GAIN = 0.5  # of score for cost, as parts of their ranges, that the front's end must bring
NEAR_BEST = 0.98  # of the scores' range: only points above it are pruned


class Observations:
    """Points of a sweep's runs, in the order in which they were told.

    Scores are kept so that more is better: negated where less is, and as logits for
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
        """Take one point; it replaces one with the same vector.

        Args:
            vector: (d,), of the parameters as they were run.
            score: as the run told it.
            cost: what the run had cost by then, seconds.
            failed: there is no score. A score or a cost that isn't finite, or a cost that isn't
                above 0, is a failure too.
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
        """Where the same vector is: at most one place."""
        if not self._vectors:
            return np.array([], int)
        distances = np.linalg.norm(np.stack(self._vectors) - vector, axis=1)
        return np.flatnonzero(distances < SAME)[:1]

    def entered(self, score: float) -> float:
        """A run's score as it is kept: more is better, as far as it counts."""
        score = self._settings.sign * self._settings.worth(score)
        if self._settings.metric_distribution == PERCENTILE:
            part = min(max(score, 1e-9), 1 - 1e-9)
            score = min(max(math.log(part / (1 - part)), -5.0), 100.0)
        return self._settings.sign * float(score)

    @property
    def vectors(self) -> np.ndarray:
        """(n, d) float64."""
        return np.stack(self._vectors)

    @property
    def scores(self) -> np.ndarray:
        """(n,) float64; more is better."""
        return np.array(self._scores)

    @property
    def costs(self) -> np.ndarray:
        """(n,) float64, seconds."""
        return np.array(self._costs)

    @property
    def failures(self) -> np.ndarray:
        """(m, d) float64: vectors of runs that came to nothing."""
        return np.array(self._failures)


class Front(NamedTuple):
    """Points that nothing cheaper is as good as, from the cheapest to the best.

    Args:
        at: (f,) int, which of the points they are.
        scores: (f,) float64, growing.
        costs: (f,) float64, growing.
    """

    at: np.ndarray
    scores: np.ndarray
    costs: np.ndarray


def pareto_front(scores: np.ndarray, costs: np.ndarray) -> Front:
    """The front of (n,) scores, more being better, and (n,) costs."""
    order = np.lexsort((-scores, costs))
    before = np.maximum.accumulate(np.concatenate([[-np.inf], scores[order][:-1]]))
    at = order[scores[order] > before + BETTER]
    return Front(at, scores[at], costs[at])


def pruned(front: Front) -> Front:
    """The front without its expensive end, where that brings little.

    From that end, a point goes if it brings less than ``LEAST_GAIN`` of score for its cost, both
    as parts of the front's ranges, until the point before it is worse than ``NEAR_BEST``.
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
    """Values from 0, the smallest, to 1, the largest."""
    least, span = values.min(initial=np.inf), np.ptp(values) if len(values) else 0.0
    return (values - least) / (span or 1.0)


# ---- ending runs early ---------------------------------------------------------------------------

LEAST_POINTS = 30  # that a line is fitted to
WINDOW = 30  # scores whose mean counts
FREE_PART, FREE_SECONDS = 0.3, 10.0  # of the front's cost, and besides, in which nothing is ended
DEAR, DEAR_SCORE = 1.2, 0.9  # above so much of it only what is near the best goes on


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
        near_best: a score that few reach, which runs that are dearer than the front have to have.
    """

    slope: float
    constant: float
    front_cost: float
    near_best: float

    def at(self, cost: float) -> float:
        """The score that a run should have when it has cost so much, seconds."""
        if cost < FREE_PART * self.front_cost + FREE_SECONDS:
            return -math.inf
        if cost > DEAR * self.front_cost:
            return self.near_best
        return self.constant + self.slope * math.log(cost)


def threshold(observations: Observations, quantile: float) -> Threshold | None:
    """What the observations say of runs that follow; None if they are too few, or 0 is asked for.

    Args:
        observations: of the runs before, points of their curves as well as their ends.
        quantile: ``early_stop_quantile``.
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
