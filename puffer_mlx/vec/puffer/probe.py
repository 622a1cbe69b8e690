"""One instance of an environment of PufferLib 3.x, to see what it is like."""

from collections.abc import Callable
from typing import Any

import numpy as np

from puffer_mlx.vec.instances import Buffers, Shapes
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.plan import step_time
from puffer_mlx.vec.puffer.make import PufferRecipe
from puffer_mlx.vec.spaces import kind_of

__all__ = ["Probe"]


class Probe:
    """One instance, of one environment if it can have any number.

    Attributes:
        agents: that it has.
        environments: that share them.

    Raises:
        UserError: it can't be made.
    """

    def __init__(self, recipe: PufferRecipe, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        self._num_envs = 1 if recipe.scales else None
        self._made = recipe(None, seed, self._num_envs)
        self.agents = int(self._made.num_agents)
        inside = recipe.keywords.get("num_envs", 1)
        whole = isinstance(inside, int) and inside > 0 and self.agents % inside == 0
        self.environments = inside if whole else 1
        self._spaces = self._made.single_observation_space, self._made.single_action_space

    def layout(self, rescale: bool = False) -> tuple[Layout, Callable[[np.ndarray], Any]]:
        """The rows, and what makes what they are written from out of an instance's observations.

        PufferLib's emulation packs the parts of a Dict or Tuple into bytes; rows hold the parts.
        ``rescale``: as of ``Layout``.
        """
        space, action = self._spaces
        dtype = np.dtype(getattr(self._made, "obs_dtype", np.uint8))
        if not getattr(self._made, "is_obs_emulated", False) or dtype.names is None:
            return Layout(self._recipe.name, space, action, rescale=rescale), _as_it_is
        inner = getattr(self._made, "env_single_observation_space", None)
        inner = self._made.env.observation_space if inner is None else inner
        return (
            Layout(self._recipe.name, inner, action, rescale=rescale),
            lambda packed: _unpacked(inner, packed.view(dtype).reshape(len(packed))),
        )

    def shapes(self, n: int) -> Shapes:
        """Of the buffers of n agents."""
        space, action = self._spaces
        chosen = action.dtype if kind_of(action) == "Box" else np.int32
        return Buffers.shapes(n, (space.shape, space.dtype), (action.shape, chosen))

    def seconds(self) -> float:
        """That a step takes."""
        layout, shapes = self.layout()[0], self.shapes(self.agents)
        return step_time(self._recipe, layout, shapes, self._num_envs, self._seed, native=True)

    def close(self) -> None:
        """Close the instance."""
        if hasattr(self._made, "close"):
            self._made.close()


def _as_it_is(observations: np.ndarray) -> np.ndarray:
    return observations


def _unpacked(space: Any, packed: np.ndarray) -> Any:
    """The parts of a structured array, (n,), nested as a space is."""
    kind = kind_of(space)
    if kind == "Dict":
        return {key: _unpacked(part, packed[key]) for key, part in space.spaces.items()}
    if kind == "Tuple":
        return tuple(_unpacked(part, packed[f"f{i}"]) for i, part in enumerate(space.spaces))
    return packed
