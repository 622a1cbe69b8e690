"""Advantages on a GPU: ``advantages.metal.h``."""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import launch, numbers

TEXT = Path(__file__).with_name("advantages.metal.h")
BLOCK = 32  # agents: 4096 of them are on 128 cores, where each waits for its own memory


def advantages(
    values: mx.array,
    rewards: mx.array,
    terminals: mx.array,
    ratios: mx.array,
    finals: mx.array | None,
    *,
    form: str,
    bootstrap: bool,
    gamma: float,
    gae_lambda: float,
    rho_clip: float,
    c_clip: float,
    reward_clip: float,
) -> mx.array:
    """``ppo.advantage.advantages`` in one launch: arrays (T, N), the first float32 -> (T, N)."""
    T, N = values.shape
    arrays = {
        "values": values,
        "rewards": rewards,
        "terminals": terminals,
        "ratios": ratios,
        "finals": terminals if finals is None else finals,
        "sizes": numbers(T, N, int(form == "V"), int(finals is not None), int(bootstrap)),
        "settings": numbers(
            *map(float, (gamma, gamma * gae_lambda, rho_clip, c_clip, reward_clip))
        ),
    }
    return launch(TEXT, "advantages", arrays, {"adv": (T, N)}, N, BLOCK)[0]
