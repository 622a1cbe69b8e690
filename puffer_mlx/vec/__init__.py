"""Environments, NumPy only: the contract, and three roads to it: C, Gymnasium, PufferLib 3.x."""

from puffer_mlx.vec.from_config import (
    find_family,
    has_cuda_network,
    look_up_spec,
    make,
    probe,
    python_factory,
    settle_family,
    source_folder,
    unused_keys,
)

__all__ = [
    "find_family",
    "has_cuda_network",
    "look_up_spec",
    "make",
    "probe",
    "python_factory",
    "settle_family",
    "source_folder",
    "unused_keys",
]
