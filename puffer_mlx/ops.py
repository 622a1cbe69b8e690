"""Operations that have a fused form on some devices, each with a pure MLX form as reference and fallback.

On the CPU the fused forms are C (``cpu_ops.py``), on a GPU they are kernels (``kernels.py``). The default device at the
time a function is traced decides.
"""

from typing import Any

import mlx.core as mx

from puffer_mlx import cpu_ops, kernels


def fused() -> Any:
    """The module with the fused operations of the default device, or None where there is none."""
    return cpu_ops.load() if mx.default_device() == mx.cpu else kernels


def steps_of(x: mx.array) -> list[mx.array]:
    """The T steps of x (T, ...) with a linear-cost gradient; the gradient of ``x[t]`` is a full array for each t."""
    T = x.shape[0]
    if T == 1:
        return [x.squeeze(0)]
    parts = next((k for k in range(min(10, T), 1, -1) if T % k == 0), None)
    chunk = -(-T // 10)
    pieces = mx.split(x, parts or list(range(chunk, T, chunk)), axis=0)
    return [step for piece in pieces for step in steps_of(piece)]


def discount(delta: mx.array, decay: mx.array) -> mx.array:
    """Backward recursion from adv[T-1] = 0: adv[t] = delta[t] + decay[t] * adv[t+1].

    Args:
        delta: (T - 1, N) float32.
        decay: (T - 1, N) float32.

    Returns:
        (T, N) float32.
    """
    module = fused()
    if module is not None:
        return module.discount(delta, decay)
    adv = mx.zeros_like(delta[0])
    out = [adv]
    for d, k in zip(reversed(steps_of(delta)), reversed(steps_of(decay)), strict=True):
        adv = d + k * adv
        out.append(adv)
    return mx.stack(out[::-1])


def take_rows(source: mx.array, rows: mx.array, steps: int) -> mx.array:
    """Gather segments: ``source[:steps, rows]``.

    Args:
        source: (T or more, N, ...), any dtype.
        rows: (S,) int32, each in [0, N).
        steps: T.

    Returns:
        (T, S, ...) of the source's dtype.
    """
    module = fused()
    if module is None or module is kernels:
        return mx.take(source[:steps], rows, axis=1)
    return module.take_rows(source, rows, steps)
