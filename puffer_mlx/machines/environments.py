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
    own = ranks.own(config)
    made = vec.make(own, threads)
    if own is config:
        return made
    seed = config.vec.seed + ranks.rank * made.num_environments
    if own.vec.seed != seed:
        own.vec.seed = seed
        made.close()
        made = vec.make(own, threads)
    config.vec.total_agents = own.vec.total_agents * ranks.size
    config.vec.num_buffers = own.vec.num_buffers
    config.notes += own.notes
    return made
