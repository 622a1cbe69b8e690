"""How many instances of an environment of PufferLib 3.x there shall be, and where they step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from puffer_mlx.config.fit import Misfit
from puffer_mlx.errors import UserError
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.processes import ROUND_TRIP, cores
from puffer_mlx.vec.puffer.buffers import Buffers
from puffer_mlx.vec.puffer.instances import Instances
from puffer_mlx.vec.puffer.make import Makes, PufferRecipe
from puffer_mlx.vec.puffer.workers import Here, Workers
from puffer_mlx.vec.spaces import kind_of
from puffer_mlx.vec.step_speed import step_seconds

__all__ = ["Plan", "Probe", "plan"]


class Probed(Protocol):
    """One instance that was looked at: ``Probe``, or PettingZoo's.

    Attributes:
        agents: that it has.
        environments: that share them.
    """

    agents: int
    environments: int

    def seconds(self) -> float:
        """That a step takes."""
        ...


class Probe:
    """One instance, to see what it is like; of one environment if it can have any number.

    Attributes:
        agents: that it has.
        environments: that share them.
        observation_space: of one agent.
        action_space: of one agent.

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
        self.observation_space = self._made.single_observation_space
        self.action_space = self._made.single_action_space

    def layout(self, rescale: bool = False) -> tuple[Layout, Callable[[np.ndarray], Any]]:
        """The rows, and what makes what they are written from out of an instance's observations.

        PufferLib's emulation packs the parts of a Dict or Tuple into bytes; rows hold the parts.
        ``rescale``: as of ``Layout``.
        """
        space = self.observation_space
        packed = getattr(self._made, "is_obs_emulated", False)
        dtype = np.dtype(getattr(self._made, "obs_dtype", np.uint8))
        if not packed or dtype.names is None:
            return Layout(self._recipe.name, space, self.action_space, rescale=rescale), _as_it_is
        inner = getattr(self._made, "env_single_observation_space", None)
        inner = self._made.env.observation_space if inner is None else inner
        return (
            Layout(self._recipe.name, inner, self.action_space, rescale=rescale),
            lambda packed: _unpacked(inner, packed.view(dtype).reshape(len(packed))),
        )

    def seconds(self) -> float:
        """That a step takes, with its share of resets and with random actions."""
        buffers = Buffers(
            **{
                key: np.zeros(*kind)
                for key, kind in Buffers.layout(
                    self.agents, self.observation_space, self.action_space
                ).items()
            }
        )
        trial = Instances(self._recipe, buffers, 1, self._num_envs, self._seed, 0)
        layout, _ = self.layout()
        sizes = layout.spec.action.sizes
        rng = np.random.default_rng(0)
        try:
            trial.reset(self._seed)

            def step() -> None:
                chosen = rng.integers(0, sizes, (self.agents, len(sizes))).astype(np.float32)
                np.copyto(buffers.actions, layout.actions(chosen))
                trial.step()

            return step_seconds(step)
        finally:
            trial.close()

    def close(self) -> None:
        """Close the instance."""
        if hasattr(self._made, "close"):
            self._made.close()


@dataclass(frozen=True)
class Plan:
    """How a group of n agents steps.

    Args:
        recipe: of the instances.
        form: ``vector``, ``sync`` or ``async``.
        count: of instances in a group.
        num_envs: environments in an instance; None if it doesn't take that.
        workers: processes of a group; 0 if it steps in this one.
        why: the form was chosen.
    """

    recipe: Makes
    form: str
    count: int
    num_envs: int | None
    workers: int
    why: str

    def describe(self, groups: int) -> str:
        """One line."""
        number = self.count * groups
        what = f"{number} instance{'s' if number > 1 else ''}"
        where = f" in {self.workers * groups} processes" if self.workers else ""
        return f"{self.form}: {what}{where}; {self.why}"

    def build(
        self, layout: dict[str, Any], group: int, seed: int, timeout: float
    ) -> Here | Workers:
        """The environments of a group; ``layout`` is of its buffers."""
        arguments: dict[str, Any] = {
            "recipe": self.recipe,
            "count": self.count,
            "num_envs": self.num_envs,
            "seed": seed,
            "number": group * self.count,
        }
        if self.workers:
            return Workers(layout, workers=self.workers, timeout=timeout, **arguments)
        return Here(layout, **arguments)


def plan(
    probe: Probed, recipe: Makes, agents: int, groups: int, backend: str, processes: int
) -> Plan:
    """Choose.

    Args:
        probe: of the recipe.
        recipe: how instances are made.
        agents: N.
        groups: Q.
        backend: ``vector``, ``sync``, ``async`` or ``auto``.
        processes: there may be, at most.

    Raises:
        UserError: the backend isn't possible.
        Misfit: the instances don't fill the groups exactly.
    """
    smallest = groups * probe.agents
    if agents % smallest:
        fitting = max(1, agents // smallest) * smallest
        raise Misfit(
            f"{recipe.name}: vec.total_agents {agents} is not a multiple of vec.num_buffers "
            f"{groups} times the {probe.agents} agents of an instance",
            f"{fitting} or {fitting + smallest} is",
            [probe.agents] * (agents // probe.agents or 1),
        )
    parts = agents // smallest  # instances as probed, in a group
    form, why = _form(probe, recipe, backend, agents // probe.agents, processes)
    single = 1 if recipe.scales else None
    if form == "vector":
        return Plan(recipe, form, 1, parts, 0, why)
    if form == "sync":
        return Plan(recipe, form, parts, single, 0, why)
    most = max(1, processes // groups)
    workers = max(w for w in range(1, min(most, parts) + 1) if parts % w == 0)
    if recipe.scales:
        return Plan(recipe, form, workers, parts // workers, workers, why)
    return Plan(recipe, form, parts, None, workers, why)


def _form(
    probe: Probed, recipe: Makes, backend: str, instances: int, processes: int
) -> tuple[str, str]:
    """The form and why, in a few words."""
    if backend == "vector" and not recipe.scales:
        given = "num_envs" in recipe.keywords
        raise UserError(
            f"{recipe.name}: vec.backend is vector, but "
            + ("env.num_envs is given" if given else "it takes no num_envs"),
            "leave env.num_envs out" if given else "set vec.backend to sync or async",
        )
    if backend != "auto":
        return backend, "as vec.backend says"
    if recipe.scales:
        return "vector", "it takes num_envs"
    processes = min(processes, instances, cores())
    if processes < 2:
        return "sync", "there is only one" if instances == 1 else "there is one core"
    seconds = probe.seconds() * instances
    words = f"their steps take {seconds * 1e6:.0f} us one after another"
    if seconds - seconds / processes > ROUND_TRIP:
        return "async", words
    return "sync", f"{words}, which processes wouldn't make faster"


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
