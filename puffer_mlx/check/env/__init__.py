"""Checks of ``puffer-mlx check-env``: play an environment and report its errors."""
