"""The mathematics of an update, MLX only: advantages, loss, priorities, optimizers, precision."""
