"""Protein: what a run with other values would score and cost, by Gaussian processes, and the best.

Source: PufferLib 4.0's Protein, by its description. What is otherwise here, and why, is in
docs/decisions/0024-protein.md.
"""

import math
from typing import NamedTuple

import numpy as np

from puffer_mlx.sweep import gaussian_process
from puffer_mlx.sweep.gaussian_process import Posterior
from puffer_mlx.sweep.method import Method
from puffer_mlx.sweep.sobol import sobol

FIRST_COST, COST_NOISE = -0.8, 0.1  # of the first runs' lengths: mean and deviation of coordinates
TARGETS = (0.16, 0.32, 0.48, 0.64, 0.8, 1.0)  # parts of the logarithm of costs to aim at
BEYOND = 1.1  # times what is aimed at: a little dearer than what is known
SHORTER = (1 / 2, 1 / 3)  # of the way to the shortest run: cheaper forms of the best
DEAREST = 97  # percentile of costs that counts as 1
FEW = 100  # below so many successes failures count as the worst score
ENOUGH = 9  # more successes and failures than that tell which vectors fail
EXPLORATION = 0.5  # deviations, where the targets of costs don't lead to what is unknown
BATCH = 4096  # candidates at a time


class Models(NamedTuple):
    """What runs would come to.

    Args:
        score: of scores, from 0, the worst seen, to 1, the best.
        cost: of logarithms of costs, from 0, the least seen, to 1, the ``DEAREST``.
        least: the logarithm of the least cost.
        span: from it to the dearest's.
    """

    score: Posterior
    cost: Posterior
    least: float
    span: float


class Protein(Method):
    """Suggests what its models of score and cost rate best among candidates near the front."""

    def choose(self, number: int, draw: np.random.Generator) -> np.ndarray:
        """A point of Sobol's sequence at first, then the best of the candidates."""
        if number < self.settings.num_random_samples or len(self.observations) < 2:
            return self._from_sobol(number, draw)
        candidates = _distinct(self.space.as_run(self.candidates(draw)))
        ratings = self.ratings(self.models(draw), candidates, self._target(number, draw))
        return candidates[np.argmax(ratings)]

    def _from_sobol(self, number: int, draw: np.random.Generator) -> np.ndarray:
        points = sobol(number + 1, len(self.space), np.random.default_rng(self.seed))
        vector = 2 * points[-1] - 1
        if self.space.cost is not None:
            vector[self.space.cost] = FIRST_COST + COST_NOISE * draw.standard_normal()
        return np.clip(vector, -1, 1)

    def _target(self, number: int, draw: np.random.Generator) -> float | None:
        """Which part of the known costs to aim at; None if there is no choice."""
        if self.space.cost is None:
            return None
        cycle, at = divmod(max(0, number - self.settings.num_random_samples), len(TARGETS))
        order = np.random.default_rng([self.seed, cycle, 1]).permutation(len(TARGETS))
        part = TARGETS[order[at]] + COST_NOISE * draw.standard_normal()
        return BEYOND * float(np.clip(part, 0, 1))

    def candidates(self, draw: np.random.Generator) -> np.ndarray:
        """(n, d): vectors around the front, and around cheaper forms of the best observations."""
        vectors = self.observations.vectors
        centres = [vectors[self.front().at]]
        if (at := self.space.cost) is not None:
            best = np.argsort(-self.observations.scores, kind="stable")
            best = vectors[best[: self.settings.num_keep_top_obs]]
            for part in SHORTER:
                shorter = best.copy()
                shorter[:, at] += part * (-1 - best[:, at])
                centres.append(shorter)
        around = np.repeat(np.concatenate(centres), self.settings.suggestions_per_pareto, axis=0)
        return self.space.around(around, draw)

    def models(self, draw: np.random.Generator) -> Models:
        """Gaussian processes of scores and costs, fitted to what is known."""
        seen = self.observations
        chosen = self._chosen(len(seen), draw)
        vectors, scores, costs = seen.vectors[chosen], seen.scores[chosen], seen.costs[chosen]
        logs = np.log(costs)
        least = float(logs.min())
        span = float(np.percentile(logs, DEAREST)) - least or 1.0
        steps = self.settings.gp_training_iter
        cost = gaussian_process.fit(vectors, (logs - least) / span, steps)
        if len(scores) < FEW and len(seen.failures):
            vectors = np.concatenate([vectors, seen.failures[-FEW:]])
            worst = np.full(len(vectors) - len(scores), scores.min())
            scores = np.concatenate([scores, worst])
        low, width = scores.min(), np.ptp(scores) or 1.0
        score = gaussian_process.fit(vectors, (scores - low) / width, steps)
        return Models(score, cost, least, span)

    def _chosen(self, count: int, draw: np.random.Generator) -> np.ndarray:
        """Which observations the models see: of too many the newest half, and some of the rest."""
        most = self.settings.gp_max_obs
        if count <= most:
            return np.arange(count)
        newest = np.arange(count - most // 2, count)
        older = draw.choice(count - len(newest), most - len(newest), replace=False)
        return np.concatenate([np.sort(older), newest])

    def ratings(self, models: Models, candidates: np.ndarray, target: float | None) -> np.ndarray:
        """(n,): how much each candidate promises; -inf if it is expected to cost too much.

        If all are, the cheapest is rated best.
        """
        scores = _in_batches(models.score.means, candidates)
        if (more := self._exploration()) > 0:
            scores = scores + more * _in_batches(models.score.deviations, candidates)
        costs = _in_batches(models.cost.means, candidates)
        ratings = np.maximum(scores, 0.0) + 1e-6 * scores
        if target is not None:
            ratings = ratings * np.maximum(1 - np.abs(target - costs), 0.0)
        ratings = ratings * self._chances(candidates)
        most = (math.log(self.settings.max_suggestion_cost) - models.least) / models.span
        affordable = costs < most
        return np.where(affordable, ratings, -np.inf) if affordable.any() else -costs

    def _exploration(self) -> float:
        """How many standard deviations count as score."""
        if self.settings.exploration >= 0:
            return self.settings.exploration
        return EXPLORATION if self.space.cost is None else 0.0

    def _chances(self, candidates: np.ndarray) -> np.ndarray:
        """(n,): how probably each candidate doesn't fail; 1 while too little is known."""
        seen = self.observations
        if len(seen) <= ENOUGH or len(seen.failures) <= ENOUGH:
            return np.ones(len(candidates))
        weights = _logistic(seen.vectors, seen.failures)
        return 1 / (1 + np.exp(-np.clip(candidates @ weights[:-1] + weights[-1], -30, 30)))


def _in_batches(function, vectors: np.ndarray) -> np.ndarray:
    return np.concatenate([function(vectors[i : i + BATCH]) for i in range(0, len(vectors), BATCH)])


def _distinct(vectors: np.ndarray) -> np.ndarray:
    """Vectors without those that are as others, in their order."""
    _, first = np.unique(np.round(vectors, 6), axis=0, return_index=True)
    return vectors[np.sort(first)]


def _logistic(good: np.ndarray, bad: np.ndarray, ridge: float = 1.0, steps: int = 20) -> np.ndarray:
    """(d + 1,): weights of a logistic regression that counts both kinds alike, by Newton's method.

    Args:
        good: (n, d).
        bad: (m, d).
        ridge: of the squared weights, the constant's too.
        steps: Newton's.
    """
    rows = np.concatenate([good, bad])
    rows = np.column_stack([rows, np.ones(len(rows))])
    labels = np.concatenate([np.ones(len(good)), np.zeros(len(bad))])
    counts = len(rows) / 2 * np.where(labels == 1, 1 / len(good), 1 / len(bad))
    weights = np.zeros(rows.shape[1])
    for _ in range(steps):
        chances = 1 / (1 + np.exp(-np.clip(rows @ weights, -30, 30)))
        slope = rows.T @ (counts * (labels - chances)) - ridge * weights
        curve = (rows * (counts * chances * (1 - chances))[:, None]).T @ rows
        weights = weights + np.linalg.solve(curve + ridge * np.eye(len(weights)), slope)
    return weights
