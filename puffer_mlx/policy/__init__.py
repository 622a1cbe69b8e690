"""Policies: encoders, networks, decoders, and distributions of actions. MLX only."""
