"""What chooses the next run: what all methods share.

A method's suggestion is a function of its seed, the suggestion's number and the observations in
their order, and of nothing else. So a sweep that went down gives the same suggestions when its
observations are told once more and the next number is given; and several processes that read the
same observations may each suggest numbers of their own.
"""

import numpy as np

from puffer_mlx.sweep.observations import Front, Observations, pareto_front, pruned
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import Space


class Method:
    """Suggests vectors by what is known of others.

    Args:
        space: what is searched.
        settings: how.
        seed: of all that is random.

    Attributes:
        observations: what is known.
    """

    def __init__(self, space: Space, settings: SweepSettings, seed: int) -> None:
        self.space, self.settings, self.seed = space, settings, seed
        self.observations = Observations(settings)
        self._next = 0

    def observe(self, vector: np.ndarray, score: float, cost: float, failed: bool = False) -> None:
        """Take one point of a run; see ``Observations.add``."""
        self.observations.add(vector, score, cost, failed)

    def suggest(self, number: int | None = None) -> np.ndarray:
        """The vector, (d,), of the next run, as it is run.

        Args:
            number: of the suggestion, from 0; None: one more than the last.
        """
        number = self._next if number is None else number
        self._next = number + 1
        vector = self.choose(number, np.random.default_rng([self.seed, number]))
        return self.space.as_run(vector[None])[0]

    def front(self) -> Front:
        """The front, pruned if the settings want that."""
        front = pareto_front(self.observations.scores, self.observations.costs)
        return pruned(front) if self.settings.prune_pareto else front

    def choose(self, number: int, draw: np.random.Generator) -> np.ndarray:
        """The suggestion, (d,), before rounding."""
        raise NotImplementedError
