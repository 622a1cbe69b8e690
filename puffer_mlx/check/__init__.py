"""Check an environment (``puffer-mlx check-env``) or this machine's GPU (``check-gpu``)."""
