"""Environments, NumPy only: the contract, and three roads to it: C, Gymnasium, PufferLib 3.x."""

from puffer_mlx.vec.from_config import (
    has_own_network,
    look_up_spec,
    make,
    make_fitting,
    python_factory,
    source_folder,
    unused_keys,
)

__all__ = [
    "has_own_network",
    "look_up_spec",
    "make",
    "make_fitting",
    "python_factory",
    "source_folder",
    "unused_keys",
]
