"""The command line: a module for each command of ``puffer-mlx`` and of ``scripts/``."""
