"""Compute a PPO update in MLX: advantages, loss, priorities, optimizers, precision."""
