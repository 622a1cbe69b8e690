"""The methods by their names, and those that need no model."""

import numpy as np

from puffer_mlx.sweep.method import Method
from puffer_mlx.sweep.protein import Protein
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import Space

MUTATED = 0.5  # of a vector's coordinates, on average


class Random(Method):
    """Every vector of the space is as probable as any other, the runs' lengths too."""

    def choose(self, number: int, draw: np.random.Generator) -> np.ndarray:
        """A vector from anywhere."""
        return draw.uniform(-1, 1, len(self.space))


class ParetoGenetic(Method):
    """A point of the Pareto front, half of whose coordinates are moved within their boxes.

    Each point of the front is as probable as any other. Without one it is the configuration's own
    values that are moved.
    """

    def choose(self, number: int, draw: np.random.Generator) -> np.ndarray:
        """A child of a point of the front."""
        parents = self.space.default[None]
        if len(self.observations):
            parents = self.observations.vectors[self.front().at]
        parent = parents[draw.integers(len(parents))]
        child = self.space.around(parent[None], draw)[0]
        mutated = draw.random(len(parent)) < MUTATED
        mutated[draw.integers(len(parent))] = True  # at least one
        return np.where(mutated, child, parent)


def make_method(space: Space, settings: SweepSettings, seed: int) -> Method:
    """The method that ``settings`` names, one of ``OURS``."""
    methods = {"Protein": Protein, "ParetoGenetic": ParetoGenetic, "Random": Random}
    return methods[settings.method](space, settings, seed)
