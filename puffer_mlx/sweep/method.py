"""What chooses the next run: the form that all methods have, and what they share.

A method's suggestion is a function of its seed, the suggestion's number and the observations in
their order, and of nothing else. So a sweep that went down gives the same suggestions when its
observations are told once more and the next number is given; and several processes that read the
same observations may each suggest numbers of their own.
"""

from typing import Protocol

import numpy as np

from puffer_mlx.sweep.observations import Observations
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import Space


class Method(Protocol):
    """What suggests vectors and is told what came of them."""

    def observe(self, vector: np.ndarray, score: float, cost: float, failed: bool = False) -> None:
        """Take one point of a run; see ``Observations.add``."""
        ...

    def suggest(self, number: int | None = None, cost: float | None = None) -> np.ndarray:
        """The vector, (d,), of the next run, as it is run.

        Args:
            number: of the suggestion, from 0; None: one more than the last.
            cost: the coordinate of the run's length, if it is given; None: the method chooses.
        """
        ...


class Told:
    """What all methods share: the observations, and numbers and randomness of suggestions.

    Args:
        space: what is searched.
        settings: how.
        seed: of all that is random.
    """

    def __init__(self, space: Space, settings: SweepSettings, seed: int) -> None:
        self.space, self.settings, self.seed = space, settings, seed
        self.observations = Observations(settings)
        self._next = 0

    def observe(self, vector: np.ndarray, score: float, cost: float, failed: bool = False) -> None:
        """Take one point of a run; see ``Observations.add``."""
        self.observations.add(vector, score, cost, failed)

    def suggest(self, number: int | None = None, cost: float | None = None) -> np.ndarray:
        """The vector of the next run; see ``Method.suggest``."""
        number = self._next if number is None else number
        self._next = number + 1
        vector = self.choose(number, np.random.default_rng([self.seed, number]), cost)
        if cost is not None and self.space.cost is not None:
            vector = self.with_cost(vector[None], cost)[0]
        return self.space.as_run(vector[None])[0]

    def choose(self, number: int, draw: np.random.Generator, cost: float | None) -> np.ndarray:
        """The suggestion, (d,), before rounding."""
        raise NotImplementedError

    def with_cost(self, vectors: np.ndarray, cost: float | np.ndarray) -> np.ndarray:
        """(n, d) vectors, all of runs of this length."""
        vectors = vectors.copy()
        vectors[:, self.space.cost] = cost
        return vectors
