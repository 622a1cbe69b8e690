"""Checks of ``puffer-mlx check-gpu``: functions that return their result as text."""
