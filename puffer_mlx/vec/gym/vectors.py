"""Gymnasium's vector environments, of its version 1.1 and newer or of 0.29: alike from here on.

Gymnasium is imported with this module, so it is imported where vector environments are made.
"""

try:
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
    from gymnasium.vector.async_vector_env import _async_worker as async_worker
except ImportError:  # 0.29
    from puffer_mlx.vec.gym.vectors_029 import (
        AsyncVectorEnv,
        AutoresetMode,
        SyncVectorEnv,
        async_worker,
    )

__all__ = ["AsyncVectorEnv", "AutoresetMode", "SyncVectorEnv", "async_worker"]
