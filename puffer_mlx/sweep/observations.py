"""What a sweep's runs came to: vectors with their scores and costs, and which of them are best."""

import math
from typing import NamedTuple

import numpy as np

from puffer_mlx.sweep.settings import PERCENTILE, SweepSettings

SAME = 1e-6  # vectors that are nearer to one another are the same
BETTER = 1e-6  # a score that isn't more than this above another is no better
LEAST_GAIN = (
    0.5  # of score for cost, both as parts of their ranges, that the front's end must bring
)
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
