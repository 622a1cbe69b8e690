"""What ``puffer-mlx check-gpu`` checks on a machine: items, each a function that says a number."""
