"""Rollout memory, and the implementations of acting that fill it: C, GPU kernels, MLX."""
