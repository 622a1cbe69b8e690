"""A rank's part of a run: agents, minibatches, seeds, and the environments of these.

A run's numbers are those of all ranks together: ``vec.total_agents`` agents, minibatches of
``train.minibatch_size`` steps. Each of R ranks has an R-th of them, so that a command that is
started on more ranks is the same run.
"""

from dataclasses import replace

from puffer_mlx import vec
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.machines.single_process import SingleProcess
from puffer_mlx.vec.base import Environments


def share(config: Config, rank: int, size: int) -> Config:
    """What one rank does of a run.

    Args:
        config: the run's.
        rank: whose part, from 0 on.
        size: how many ranks there are.

    Raises:
        UserError: agents or minibatches can't be divided by them.
    """
    train = config.train
    agents, buffers = config.vec.total_agents, config.vec.num_buffers
    if agents % (size * buffers):
        raise UserError(
            f"vec.total_agents {agents} is not a multiple of {size} ranks x vec.num_buffers"
            f" {buffers}",
            _multiples("vec.total_agents", agents, size * buffers),
        )
    step = size if config.shuffles_samples else size * train.horizon
    if train.minibatch_size % step:
        each = "" if config.shuffles_samples else f" x train.horizon {train.horizon}"
        raise UserError(
            f"train.minibatch_size {train.minibatch_size} is not a multiple of {size} ranks{each}",
            _multiples("train.minibatch_size", train.minibatch_size, step),
        )
    part = replace(
        config,
        vec=replace(config.vec, total_agents=agents // size),
        train=replace(
            train,
            minibatch_size=train.minibatch_size // size,
            total_timesteps=train.total_timesteps // size,
        ),
        origins=dict(config.origins),
        notes=[],
    )
    part.vec.seed = config.vec.seed + rank * part.vec.total_agents
    if (part.epochs, part.minibatches) != (config.epochs, config.minibatches):
        raise UserError(
            f"{size} ranks' parts round to {part.minibatches} minibatches in each of {part.epochs}"
            f" epochs, not to {config.minibatches} in {config.epochs}",
            "change train.replay_ratio a little",
        )
    return part


def _multiples(name: str, value: int, step: int) -> str:
    lower = value // step * step
    return f"{name} {' or '.join(str(n) for n in (lower, lower + step) if n)}"


def make_environments(config: Config, ranks: SingleProcess, threads: int) -> Environments:
    """The environments that this process steps: see ``vec.make``.

    Args:
        config: the run's. Agents and buffers that don't fit are lowered in it, with a note.
        ranks: among which they are divided.
        threads: as of ``vec.make``.

    Raises:
        UserError: as ``vec.make``, or they can't be divided.
    """
    part = ranks.own(config)
    environments = vec.make(part, threads)
    if part is config:
        return environments
    seed = config.vec.seed + ranks.rank * environments.num_environments
    if part.vec.seed != seed:
        part.vec.seed = seed
        environments.close()
        environments = vec.make(part, threads)
    config.vec.total_agents = part.vec.total_agents * ranks.size
    config.vec.num_buffers = part.vec.num_buffers
    config.notes += part.notes
    return environments
