"""The items of ``puffer-mlx check-gpu``: functions that return a number in words."""
