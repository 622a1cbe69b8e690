"""Checks of an environment, which is played with: ``puffer-mlx check-env``."""
