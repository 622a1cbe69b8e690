"""Check an environment by playing it: ``puffer-mlx check-env``."""
