"""A rank's environments: its part of the run's, seeded by their numbers among all."""

from puffer_mlx import vec
from puffer_mlx.config import Config
from puffer_mlx.machines.alone import Alone
from puffer_mlx.vec.base import Environments


def make(config: Config, ranks: Alone, threads: int) -> Environments:
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
