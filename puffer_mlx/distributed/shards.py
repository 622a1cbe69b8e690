"""A rank's shard of a run: agents, minibatches, seeds and environments.

Options count for all ranks together: ``vec.total_agents`` agents, minibatches of
``train.minibatch_size`` steps. Each of R ranks gets 1/R of them, so the same command on more ranks
is the same run.
"""

from dataclasses import replace

from puffer_mlx import vec
from puffer_mlx.config import Config
from puffer_mlx.distributed.single_process import SingleProcess
from puffer_mlx.errors import UserError
from puffer_mlx.vec.base import Environments


def partition(config: Config, rank: int, size: int) -> Config:
    """Return the configuration of a rank's shard.

    Args:
        config: configuration of the entire run.
        rank: number of the rank, from 0.
        size: number of ranks.

    Raises:
        UserError: the number of ranks doesn't divide the agents or the minibatches.
    """
    train = config.train
    agents = config.vec.total_agents
    buffers = config.vec.num_buffers
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
    """Make this process's environments: see ``vec.make``.

    Args:
        config: configuration of the entire run. Numbers of agents and buffers that don't fit are
            lowered in it, and a note is added.
        ranks: this process or its rank.
        threads: number of threads that step environments, as for ``vec.make``.

    Raises:
        UserError: see ``vec.make``; or the number of ranks doesn't divide the agents.
    """
    part = ranks.local_config(config)
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
