"""The backward recursion of advantages: plain MLX, or one walk through time."""

import mlx.core as mx

from puffer_mlx.ops.choice import FusedOperation
from puffer_mlx.ops.discount import gpu
from puffer_mlx.ops.recurrence.operation import steps_of

DISCOUNT = FusedOperation("discount", gpu.discount)


def discount(delta: mx.array, decay: mx.array) -> mx.array:
    """Backward recursion from adv[T-1] = 0: adv[t] = delta[t] + decay[t] * adv[t+1].

    Args:
        delta: (T - 1, N) float32.
        decay: (T - 1, N) float32.

    Returns:
        (T, N) float32.
    """
    fused = DISCOUNT.form()
    if fused is not None:
        return fused(delta, decay)
    adv = mx.zeros_like(delta[0])
    out = [adv]
    for d, k in zip(reversed(steps_of(delta)), reversed(steps_of(decay)), strict=True):
        adv = d + k * adv
        out.append(adv)
    return mx.stack(out[::-1])
