"""The command line: one module for each command of ``puffer-mlx``, and of ``scripts/``."""
