"""Operations with a fused form on some devices and a pure MLX form as reference and fallback.

On the CPU the fused forms are C (``cpu_ops.py``), on a GPU they are kernels (``kernels.py``). The
default device at the time a function is traced decides.
"""

from typing import Any

import mlx.core as mx

from puffer_mlx import cpu_ops, kernels


def fused() -> Any:
    """The module with the fused operations of the default device, or None where there is none."""
    return cpu_ops.load() if mx.default_device() == mx.cpu else kernels


def _threads_products() -> bool:
    """Whether ``cpu_ops`` splits products: where a BLAS would wait busily for its own threads."""
    module = fused()
    return module is not None and module is not kernels and module.has_gemm()


def linear(x: mx.array, weight: mx.array) -> mx.array:
    """Product x weight^T (n, M) of x (n, K) float32 and weight (M, K)."""
    return _linear_rows(x, weight) if _threads_products() else x @ weight.T  # type: ignore


def linear_columns(x: mx.array, weight: mx.array) -> mx.array:
    """Product weight x^T (M, n) of x (n, K) float32 and weight (M, K)."""
    return _linear_columns(x, weight) if _threads_products() else weight @ x.T  # type: ignore


def linear_gradients(
    dy: mx.array, x: mx.array, weight: mx.array, add: mx.array
) -> tuple[mx.array, mx.array]:
    """Gradients of ``linear``: by x, with ``add`` (n, K) added to it, and by the weight.

    Args:
        dy: (n, M).
        x: (n, K).
        weight: (M, K).
        add: (n, K).

    Returns:
        (n, K) and (M, K).
    """
    if not _threads_products():
        return mx.addmm(add, dy, weight), dy.T @ x
    module = fused()
    return (
        module.linear_input_gradient(dy, weight, False, add),
        module.linear_weight_gradient(dy, x, False),
    )


def _threaded_linear(columns: bool):
    """``linear``, or ``linear_columns`` if ``columns``, computed by ``cpu_ops``."""

    @mx.custom_function
    def product(x: mx.array, weight: mx.array) -> mx.array:
        return fused().linear(x, weight, columns)

    @product.vjp
    def gradients(primals, dy, _):
        x, weight = primals
        module = fused()
        return (
            module.linear_input_gradient(dy, weight, columns),
            module.linear_weight_gradient(dy, x, columns),
        )

    return product


# Made once: MLX may abort when a custom function goes while a compiled function refers to it.
_linear_rows = _threaded_linear(columns=False)
_linear_columns = _threaded_linear(columns=True)


def steps_of(x: mx.array) -> list[mx.array]:
    """The T steps of x (T, ...); ``x[t]`` would cost a full array for each t in the gradient."""
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
