"""PufferLib 4.0's Protein, written from its description, for comparison with ours.

docs/decisions/0024-protein.md lists the differences. Here the models start warm: each suggestion
takes 50 optimizer steps of 1e-3 from the previous parameters, which are behind a softplus and all
begin at 0; the kernel includes a linear term. Candidates that are too expensive are rated 0. Points
at or below the shortest run of the range are dropped. Candidates aren't rounded before rating.
"""

import math

import numpy as np

from puffer_mlx.sweep.gaussian_process import (
    MIN_NOISE,
    Parameters,
    Posterior,
    log_likelihood,
)
from puffer_mlx.sweep.methods import COST_NOISE, TARGET_COST_FACTOR, TARGET_COSTS, Protein
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import Space

OPTIMIZER_STEPS, LEARNING_RATE, RESET_INTERVAL = 50, 1e-3, 50


class WarmModel:
    """A Gaussian process that each fit trains further from the last, keeping Adam's moments."""

    def __init__(self, dimensions: int) -> None:
        self.raw = np.zeros(dimensions + 4)
        self.forget()

    def forget(self) -> None:
        self.mean, self.square, self.largest = (np.zeros_like(self.raw) for _ in range(3))
        self.step = 0

    def parameters(self) -> Parameters:
        positive = np.log1p(np.exp(self.raw[:-1]))
        scale, offset, noise = positive[-3:]
        return Parameters(positive[:-3], scale, offset, MIN_NOISE + noise, self.raw[-1], linear=1.0)

    def fit(self, x: np.ndarray, y: np.ndarray) -> Posterior:
        for _ in range(OPTIMIZER_STEPS):
            self.step += 1
            _, slope = log_likelihood(self.parameters(), x, y)
            by_value = np.array([*slope.lengths, slope.scale, slope.offset, slope.noise])
            by_raw = by_value / (1 + np.exp(-self.raw[:-1]))
            gradient = np.array([*by_raw, slope.mean]) / len(y)
            self.mean = 0.9 * self.mean + 0.1 * gradient
            self.square = 0.999 * self.square + 0.001 * gradient**2
            self.largest = np.maximum(self.largest, self.square)
            rooted = np.sqrt(self.largest / (1 - 0.999**self.step)) + 1e-8
            self.raw += LEARNING_RATE * self.mean / (1 - 0.9**self.step) / rooted
        return Posterior(self.parameters(), x, y)


class UpstreamProtein(Protein):
    """PufferLib's search method Protein, for comparison with ours.

    Failed runs are treated as in ours; upstream needs downsample = 1.
    """

    def __init__(self, space: Space, settings: SweepSettings, seed: int) -> None:
        super().__init__(space, settings, seed)
        self.score_model, self.cost_model = WarmModel(len(space)), WarmModel(len(space))
        self.fits = 0
        self.targets: list[float] = []

    def observe(self, vector: np.ndarray, score: float, cost: float, failed: bool = False) -> None:
        if failed or self.space.timesteps_index is None or vector[self.space.timesteps_index] > -1:
            super().observe(vector, score, cost, failed)

    def choose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        if number < self.settings.num_random_samples or len(self.observations) < 2:
            return self._from_sobol(number, rng)
        seen = self.observations
        vectors, scores, logs = seen.vectors, seen.scores, np.log(seen.costs)
        if self.fits % RESET_INTERVAL == 0:
            self.score_model.forget()
            self.cost_model.forget()
        self.fits += 1
        least, dear = float(logs.min()), float(np.percentile(logs, 97))
        span = dear - least or 1.0
        costs = self.cost_model.fit(vectors, (logs - least) / span)
        low, width = scores.min(), np.ptp(scores) or 1.0
        failures = seen.failures if len(scores) < 100 and len(seen.failures) else vectors[:0]
        all_vectors = np.concatenate([vectors, failures])
        all_scores = np.concatenate([scores, np.full(len(failures), low)])
        score = self.score_model.fit(all_vectors, (all_scores - low) / width)

        candidates = self.candidates(rng, local=False)
        expected = costs.means(candidates)
        if not self.targets:
            self.targets = list(rng.permutation(TARGET_COSTS))
        target = TARGET_COST_FACTOR * np.clip(
            self.targets.pop() + COST_NOISE * rng.standard_normal(), 0, 1
        )
        max_cost = (math.log(self.settings.max_suggestion_cost) - least) / span
        rating = score.means(candidates) * (expected < max_cost) * (1 - np.abs(target - expected))
        return candidates[np.argmax(rating)]
