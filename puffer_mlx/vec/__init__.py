"""Vectorised environments in C, of Gymnasium, PettingZoo and PufferLib 3.x. NumPy only."""

from puffer_mlx.vec.from_config import (
    has_cuda_network,
    look_up_family,
    look_up_spec,
    make,
    probe,
    python_factory,
    settle_family,
    source_folder,
    unused_env_keys,
)

__all__ = [
    "has_cuda_network",
    "look_up_family",
    "look_up_spec",
    "make",
    "probe",
    "python_factory",
    "settle_family",
    "source_folder",
    "unused_env_keys",
]
