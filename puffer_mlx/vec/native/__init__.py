"""Environments in C: PufferLib's folders, compiled on first use."""

from puffer_mlx.vec.native.make import find_environment

__all__ = ["find_environment"]
