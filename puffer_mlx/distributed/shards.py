"""Divide a run among ranks: agents, minibatches, seeds and environments.

Options are totals over all ranks, for example ``vec.total_agents`` and ``train.minibatch_size``.
Each of R ranks gets 1/R of the agents and of each minibatch, so the same command trains the same
run on any number of ranks.
"""

from dataclasses import replace

from puffer_mlx import vec
from puffer_mlx.config import Config
from puffer_mlx.distributed.single_process import SingleProcess
from puffer_mlx.errors import UserError
from puffer_mlx.vec.base import Environments


def partition(config: Config, rank: int, size: int) -> Config:
    """Return the configuration of one rank's shard of a run: of its agents and minibatches.

    Args:
        config: Configuration of the entire run.
        rank: Number of the rank, from 0.
        size: Number of ranks.

    Raises:
        UserError: The agents or minibatches can't be divided by the number of ranks.
    """
    train = config.train
    agents = config.vec.total_agents
    buffers = config.vec.num_buffers
    if agents % (size * buffers):
        raise UserError(
            f"vec.total_agents {agents} is not a multiple of {size} ranks x vec.num_buffers"
            f" {buffers}",
            _nearest_multiples("vec.total_agents", agents, size * buffers),
        )
    # Each rank's part of a minibatch is a number of steps, or of segments of ``horizon`` steps.
    divisor = size if config.shuffles_samples else size * train.horizon
    if train.minibatch_size % divisor:
        each = "" if config.shuffles_samples else f" x train.horizon {train.horizon}"
        raise UserError(
            f"train.minibatch_size {train.minibatch_size} is not a multiple of {size} ranks{each}",
            _nearest_multiples("train.minibatch_size", train.minibatch_size, divisor),
        )
    local = replace(
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
    local.vec.seed = config.vec.seed + rank * local.vec.total_agents
    if (local.epochs, local.minibatches) != (config.epochs, config.minibatches):
        raise UserError(
            f"divided among {size} ranks, the run has {local.epochs} epochs of {local.minibatches}"
            f" minibatches instead of {config.epochs} epochs of {config.minibatches}",
            "change train.replay_ratio a little",
        )
    return local


def _nearest_multiples(name: str, value: int, divisor: int) -> str:
    """Return a hint that names the multiples of ``divisor`` nearest to an option's value."""
    lower = value // divisor * divisor
    return f"{name} {' or '.join(str(n) for n in (lower, lower + divisor) if n)}"


def make_local_environments(config: Config, ranks: SingleProcess, threads: int) -> Environments:
    """Create the environments of this rank's shard of a run.

    Args:
        config: Configuration of the entire run. If its numbers of agents and buffers don't fit the
            environment, they are lowered here, and a note is added to the configuration.
        ranks: This process's rank.
        threads: Number of threads that step environments.

    Raises:
        UserError: The environments can't be created (``vec.make``), or the agents can't be divided
            by the number of ranks.
    """
    local = ranks.local_config(config)
    environments = vec.make(local, threads)
    if local is config:  # a single process
        return environments
    # Only now the number of environments is known, by which the seeds of the ranks must differ.
    seed = config.vec.seed + ranks.rank * environments.num_environments
    if local.vec.seed != seed:
        local.vec.seed = seed
        environments.close()
        environments = vec.make(local, threads)
    config.vec.total_agents = local.vec.total_agents * ranks.size
    config.vec.num_buffers = local.vec.num_buffers
    config.notes += local.notes
    return environments
