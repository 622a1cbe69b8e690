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
    ratios: mx.array | None,
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
    """``ppo.advantage.advantages`` in one launch: arrays (T, N) -> (T, N) float32."""
    (T, N), has = values.shape, (finals is not None, ratios is not None)
    ratios, finals = rewards if ratios is None else ratios, terminals if finals is None else finals
    sizes = numbers(T, N, *map(int, (form == "V", has[0], bootstrap, has[1])))
    settings = gamma, gamma * gae_lambda, rho_clip, c_clip, reward_clip
    arrays = [values, rewards, terminals, ratios, finals, sizes, numbers(*map(float, settings))]
    return launch(TEXT, "advantages", arrays, [(T, N)], N, BLOCK)[0]
