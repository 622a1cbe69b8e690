"""How many instances of an environment in Python there shall be, and where they step."""

import time
from typing import NamedTuple

import numpy as np

from puffer_mlx.config.fit import Misfit
from puffer_mlx.errors import UserError
from puffer_mlx.vec.instances import Recipe
from puffer_mlx.vec.pool import SingleProcess, pickled
from puffer_mlx.vec.processes import ROUND_TRIP, cores
from puffer_mlx.vec.rows import random_actions

_PROBE_SECONDS, _PROBE_STEPS = 0.05, 100  # twice, at most


class Plan(NamedTuple):
    """How each group of agents steps."""

    form: str  # ``vector``, ``sync`` or ``async``
    description: str  # of all groups, one line
    count: int  # of instances in a group
    num_envs: int | None  # environments in an instance; None if it doesn't take that
    workers: int  # processes of a group; 0 if it steps in this one


def plan(recipe: Recipe, agents: int, groups: int, backend: str, processes: int, seed: int) -> Plan:
    """Choose.

    Args:
        recipe: of instances, one of which was looked at.
        agents: N.
        groups: Q.
        backend: ``vector``, ``sync``, ``async`` or ``auto``.
        processes: there may be, at most; each of Gymnasium's environments has its own.
        seed: of instance 0, to measure a step.

    Raises:
        UserError: the backend isn't possible.
        Misfit: the instances don't fill the groups exactly.
    """
    each = recipe.agents
    smallest = groups * each
    if agents % smallest:
        fitting = max(1, agents // smallest) * smallest
        times = f" times the {each} agents of an instance" if each > 1 else ""
        raise Misfit(
            f"{recipe.name}: vec.total_agents {agents} is not a multiple of vec.num_buffers "
            f"{groups}{times}",
            f"{fitting} or {fitting + smallest} is",
            [each] * (agents // each or 1),
        )
    parts = agents // smallest  # instances as they were looked at, in a group
    if recipe.by_environment:
        processes = agents
    form, why = _form(recipe, backend, agents // each, processes, seed)
    count, num_envs, workers = parts, 1 if recipe.scales else None, 0
    if form == "vector":
        count, num_envs = 1, parts
    elif form == "async":
        most = max(1, processes // groups)
        workers = max(w for w in range(1, min(most, parts) + 1) if parts % w == 0)
        if recipe.scales:
            count, num_envs = workers, parts // workers
    number, running = count * groups, f"{workers * groups} processes"
    text = f"{form}: "
    if not recipe.by_environment:
        text += f"{number} instance{'s' if number > 1 else ''}"
        text += f" in {running}; " if workers else "; "
    elif workers:
        text += f"{running}; "
    return Plan(form, text + why, count, num_envs, workers)


def _form(
    recipe: Recipe, backend: str, instances: int, processes: int, seed: int
) -> tuple[str, str]:
    """The form and why, in a few words."""
    if backend in ("sync", "async"):
        return backend, "as vec.backend says"
    form, lacking = recipe.vector_form()
    if not lacking:
        return "vector", form
    if backend == "vector":
        fixed = "num_envs" in recipe.keywords
        raise UserError(
            f"{recipe.name}: vec.backend is vector, but {lacking}",
            "leave env.num_envs out" if fixed else "set vec.backend to sync or async",
        )
    lost = f"{lacking}; " if "(wrap." in lacking else ""  # wrappers cost the vectorised form
    processes = min(processes, instances, cores())
    if processes < 2:
        return "sync", lost + ("there is only one" if instances == 1 else "there is one core")
    seconds = step_time(recipe, seed)
    text = f"{lost}a step takes {_duration(seconds)}"
    at_once = seconds if recipe.by_environment else seconds * instances
    if at_once - at_once / processes > ROUND_TRIP:
        try:
            pickled(recipe)
        except UserError as error:
            return "sync", f"{text}, but {error.message.removeprefix(f'{recipe.name}: ')}"
        return "async", text
    return "sync", f"{text}, which processes wouldn't make faster"


def step_time(recipe: Recipe, seed: int = 0) -> float:
    """Seconds that a step of one instance takes, with its share of resets: random legal actions.

    Raises:
        UserError: the environment fails.
    """
    recipe.settle("sync", 1)
    num_envs = 1 if recipe.scales else None
    one = SingleProcess(
        recipe.shapes(recipe.agents), recipe=recipe, count=1, num_envs=num_envs, seed=seed, number=0
    )
    rng, buffers = np.random.default_rng(0), one.buffers
    legal = buffers.legal if buffers.legal.size else None

    def part() -> float:
        """The mean of some steps, as many as there is a moment for."""
        steps, began, busy = 0, time.perf_counter(), one.busy_seconds()
        in_time = True  # a busy machine may need longer for the first step
        while in_time and steps < _PROBE_STEPS:
            chosen = random_actions(recipe.layout, len(buffers.rewards), rng, legal)
            np.copyto(buffers.actions, recipe.buffered(chosen))
            one.ask("step")
            one.answer()
            steps += 1
            in_time = time.perf_counter() - began < _PROBE_SECONDS
        return (one.busy_seconds() - busy) / steps

    try:
        one.ask("reset", seed)
        one.answer()
        return min(part(), part())  # another program may have been at work in one of them
    finally:
        one.close()
        recipe.close()


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds * 1e6:.0f} us"
