"""Vectorised environments in C, and from Gymnasium, PettingZoo and PufferLib 3.x. NumPy only.

A *family* is a kind of environment with its own default settings, such as ``atari``:
``config.families``.
"""

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
