"""What may be wrong with an environment, found by playing it: ``puffer-mlx check-env``."""
