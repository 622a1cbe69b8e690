"""Rollout memory, and filling it: through MLX, or by the policy's step in C."""
