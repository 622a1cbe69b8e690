"""Vectorised environments: ``make`` builds the one that a configuration names."""

from puffer_mlx.config import Config
from puffer_mlx.vec.native import NativeVec, find_environment

__all__ = ["make"]


def make(config: Config, threads: int) -> NativeVec:
    """The environments of a configuration.

    Args:
        config: names the environment and gives its parameters, agents and buffers.
        threads: the most threads that may step environments; ``vec.num_threads`` may ask for fewer.

    Raises:
        UserError: there is no such environment, it doesn't compile, or its parameters are wrong.
    """
    return NativeVec(
        find_environment(config.env_name),
        total_agents=config.vec.total_agents,
        num_buffers=config.vec.num_buffers,
        num_threads=max(1, min(config.vec.num_threads, threads)),
        env=config.env,
        seed=config.vec.seed,
    )
