"""How many instances of an environment in Python there shall be, and where they step."""

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from puffer_mlx.config.fit import Misfit
from puffer_mlx.errors import UserError
from puffer_mlx.vec.instances import Makes, Shapes
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.pool import Here, Workers
from puffer_mlx.vec.processes import ROUND_TRIP, cores
from puffer_mlx.vec.rows import random_actions

__all__ = ["Plan", "pays", "plan", "step_time"]

_PROBE_SECONDS, _PROBE_STEPS = 0.05, 100  # twice, at most


class Probed(Protocol):
    """One instance that was looked at.

    Attributes:
        agents: that it has.
        environments: that share them.
    """

    agents: int
    environments: int

    def seconds(self) -> float:
        """That a step takes."""
        ...


@dataclass(frozen=True)
class Plan:
    """How a group of n agents steps.

    Args:
        recipe: of the instances.
        form: ``vector``, ``sync`` or ``async``.
        description: of all groups, one line.
        count: of instances in a group.
        num_envs: environments in an instance; None if it doesn't take that.
        workers: processes of a group; 0 if it steps in this one.
        apart: of the numbers of two groups' first instances; ``count`` if it is 0.
    """

    recipe: Makes
    form: str
    description: str
    count: int
    num_envs: int | None
    workers: int
    apart: int = 0

    def build(self, shapes: Shapes, group: int, seed: int, timeout: float) -> Here | Workers:
        """The environments of a group, whose buffers have ``shapes``."""
        arguments = {
            "recipe": self.recipe,
            "count": self.count,
            "num_envs": self.num_envs,
            "seed": seed,
            "number": group * (self.apart or self.count),
        }
        if self.workers:
            return Workers(shapes, workers=self.workers, timeout=timeout, **arguments)
        return Here(shapes, **arguments)


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
    count, num_envs, workers = parts, 1 if recipe.scales else None, 0
    if form == "vector":
        count, num_envs = 1, parts
    elif form == "async":
        most = max(1, processes // groups)
        workers = max(w for w in range(1, min(most, parts) + 1) if parts % w == 0)
        if recipe.scales:
            count, num_envs = workers, parts // workers
    number = count * groups
    text = f"{form}: {number} instance{'s' if number > 1 else ''}"
    text += f" in {workers * groups} processes" if workers else ""
    return Plan(recipe, form, f"{text}; {why}", count, num_envs, workers)


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
    if pays(seconds, processes):
        return "async", words
    return "sync", f"{words}, which processes wouldn't make faster"


def pays(seconds: float, processes: int) -> bool:
    """Whether steps that take so long are faster in several processes."""
    return seconds - seconds / processes > ROUND_TRIP


def step_time(
    recipe: Makes,
    layout: Layout,
    shapes: Shapes,
    num_envs: int | None = None,
    seed: int = 0,
    native: bool = False,
) -> float:
    """Seconds that a step of one instance takes, with its share of resets: random legal actions.

    Args:
        recipe: of the instance.
        layout: of its agents' actions.
        shapes: of its buffers.
        num_envs: see ``Makes.instance``.
        seed: likewise.
        native: whether the buffers hold actions as the space has them, and not a policy's.

    Raises:
        UserError: the environment fails.
    """
    here = Here(shapes, recipe=recipe, count=1, num_envs=num_envs, seed=seed, number=0)
    rng, buffers = np.random.default_rng(0), here.buffers
    legal = buffers.legal if buffers.legal.size else None

    def part() -> float:
        """The mean of some steps, as many as there is a moment for."""
        steps, began, busy = 0, time.perf_counter(), here.busy_seconds()
        while steps < _PROBE_STEPS and time.perf_counter() - began < _PROBE_SECONDS:
            chosen = random_actions(layout, len(buffers.rewards), rng, legal)
            np.copyto(buffers.actions, layout.actions(chosen) if native else chosen)
            here.ask("step")
            here.answer()
            steps += 1
        return (here.busy_seconds() - busy) / steps

    try:
        here.ask("reset", seed)
        here.answer()
        return min(part(), part())  # another program may have been at work in one of them
    finally:
        here.close()
