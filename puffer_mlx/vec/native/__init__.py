"""Environments in C: PufferLib 4.0's folders, compiled on first use."""

from puffer_mlx.vec.native.make import find_environment

__all__ = ["find_environment"]
