"""Environments, NumPy only: the contract, and three roads to it: C, Gymnasium, PufferLib 3.x."""

from puffer_mlx.vec.from_config import factory, folder, look, make, make_fitting, unused

__all__ = ["factory", "folder", "look", "make", "make_fitting", "unused"]
