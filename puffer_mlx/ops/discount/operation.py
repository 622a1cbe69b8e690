"""The backward recursion of advantages: plain MLX, or one walk through time in C++.

A GPU's is part of ``ops/advantages``.
"""

import mlx.core as mx

from puffer_mlx.ops.choice import extension_on_cpu
from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.ops.recurrence.operation import steps_of

REFERENCE = Reference(
    "the extension's walk through time",
    ("ops.discount.operation:discount",),
    test="tests/ppo/test_advantage.py",
    cost="advantages take ten times as long on a CPU",
)


def discount(delta: mx.array, decay: mx.array) -> mx.array:
    """Backward recursion from adv[T-1] = 0: adv[t] = delta[t] + decay[t] * adv[t+1].

    Args:
        delta: (T - 1, N) float32.
        decay: (T - 1, N) float32.

    Returns:
        (T, N) float32.
    """
    extension = extension_on_cpu(REFERENCE)
    if extension is not None:
        return extension.discount(delta, decay)
    adv = mx.zeros(delta.shape[1:])
    if not delta.shape[0]:
        return adv[None]
    out = [adv]
    for d, k in zip(reversed(steps_of(delta)), reversed(steps_of(decay)), strict=True):
        adv = d + k * adv
        out.append(adv)
    return mx.stack(out[::-1])
