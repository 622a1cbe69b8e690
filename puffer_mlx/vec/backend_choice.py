"""Choose the backend of Python environments: vectorised, in this process, or in processes."""

from typing import NamedTuple

from puffer_mlx.config.fit import Misfit
from puffer_mlx.errors import UserError
from puffer_mlx.vec.instances import EnvFactory
from puffer_mlx.vec.pool import pickle_factory
from puffer_mlx.vec.processes import ROUND_TRIP_SECONDS, cores


class BackendChoice(NamedTuple):
    """Backend of a group of Python environments, with its numbers of instances and processes."""

    backend: str  # ``vector``, ``sync`` or ``async``
    description: str  # one line for the user
    count: int  # instances per group
    num_envs: int | None  # environments per instance, or None when the number is fixed
    workers: int  # processes per group; 0 if groups step in this process


def choose_backend(
    factory: EnvFactory, agents: int, groups: int, backend: str, processes: int, seed: int
) -> BackendChoice:
    """Choose how the groups of a Python environment step: backend, instances and processes.

    Args:
        factory: Makes the instances; must be probed.
        agents: Number of agents N.
        groups: Number of groups Q.
        backend: ``vector``, ``sync``, ``async`` or ``auto``.
        processes: Maximum number of processes; unused for Gymnasium's environments, which have one
            process each.
        seed: Seed of instance 0, to measure a step.

    Raises:
        UserError: The backend isn't possible.
        Misfit: The instances don't fill the groups exactly.
    """
    each = factory.agents
    smallest = groups * each
    if agents % smallest:
        fitting = max(1, agents // smallest) * smallest
        times = f" times the {each} agents of an instance" if each > 1 else ""
        raise Misfit(
            f"{factory.name}: vec.total_agents {agents} is not a multiple of vec.num_buffers "
            f"{groups}{times}",
            f"{fitting} or {fitting + smallest} is",
            [each] * (agents // each or 1),
        )
    per_group = agents // smallest  # probed instances that fill a group
    if factory.by_environment:
        processes = agents
    backend, reason = _select_backend(factory, backend, agents // each, processes, seed)
    count = per_group
    num_envs = 1 if factory.scales else None
    workers = 0
    if backend == "vector":
        count = 1
        num_envs = per_group
    elif backend == "async":
        max_workers = min(max(1, processes // groups), per_group)
        workers = max(w for w in range(1, max_workers + 1) if per_group % w == 0)
        if factory.scales:
            count = workers
            num_envs = per_group // workers
    number = count * groups
    running = f"{workers * groups} processes"
    text = f"{backend}: "
    if not factory.by_environment:
        text += f"{number} instance{'s' if number > 1 else ''}"
        text += f" in {running}; " if workers else "; "
    elif workers:
        text += f"{running}; "
    return BackendChoice(backend, text + reason, count, num_envs, workers)


def _select_backend(
    factory: EnvFactory, backend: str, instances: int, processes: int, seed: int
) -> tuple[str, str]:
    """Select the backend that steps Python environments. Returns it, and the reason as text."""
    if backend in ("sync", "async"):
        return backend, "as vec.backend says"
    version, reason = factory.vectorised_version()
    if not reason:
        return "vector", version
    # The user may prefer a vectorised version to a wrapper, so name the wrapper.
    wrap_reason = f"{reason}; " if "(wrap." in reason else ""
    processes = min(processes, instances, cores())
    if processes < 2:
        return "sync", wrap_reason + (
            "there is only one" if instances == 1 else "there is one core"
        )
    seconds = step_time(factory, seed)
    text = f"{wrap_reason}a step takes {_duration(seconds)}"
    sequential = seconds if factory.by_environment else seconds * instances
    if sequential - sequential / processes > ROUND_TRIP_SECONDS:
        try:
            pickle_factory(factory)
        except UserError as error:
            return "sync", f"{text}, but {error.message.removeprefix(f'{factory.name}: ')}"
        return "async", text
    return "sync", f"{text}, which processes wouldn't make faster"


def step_time(factory: EnvFactory, seed: int = 0) -> float:
    """Return the seconds that a step of one environment instance takes, measured only once.

    Raises:
        UserError: The environment fails.
    """
    if factory.step_seconds is None:
        factory.probe(seed=seed, measure=True)
    assert factory.step_seconds is not None
    return factory.step_seconds


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds * 1e6:.0f} us"
