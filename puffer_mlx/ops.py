"""Operations with a fused form on some devices and a pure MLX form as reference and fallback.

On the CPU the fused forms are C (``cpu_ops.py``), on a GPU they are kernels (``kernels.py``). The
default device at the time a function is traced decides.
"""

from typing import Any

import mlx.core as mx

from puffer_mlx import cpu_ops, kernels


def _extension() -> Any:
    """The C extension where the default device is a CPU that has it, else None."""
    return cpu_ops.load() if mx.default_device() == mx.cpu else None


def fused() -> Any:
    """The module with the fused operations of the default device, or None where there is none."""
    return _extension() if mx.default_device() == mx.cpu else kernels


def _threads_products() -> bool:
    """Whether the extension splits products: where a BLAS would wait busily for its own threads."""
    extension = _extension()
    return extension is not None and extension.has_gemm()


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
    if _threads_products():
        return _threaded_gradients(dy, x, weight, columns=False, add=add)
    return mx.addmm(add, dy, weight), dy.T @ x


def _threaded_gradients(dy, x, weight, columns: bool, add: mx.array | None = None):
    """Gradients of ``_threaded_linear``'s product: by x, plus ``add``, and by the weight."""
    extension = _extension()
    return (
        extension.linear_input_gradient(dy, weight, columns, add),
        extension.linear_weight_gradient(dy, x, columns),
    )


def _threaded_linear(columns: bool):
    """``linear``, or ``linear_columns`` if ``columns``, computed by the extension."""

    @mx.custom_function
    def product(x: mx.array, weight: mx.array) -> mx.array:
        return _extension().linear(x, weight, columns)

    @product.vjp
    def gradients(primals, dy, _):
        x, weight = primals
        return _threaded_gradients(dy, x, weight, columns)

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
    extension = _extension()
    if extension is None:
        return mx.take(source[:steps], rows, axis=1)
    return extension.take_rows(source, rows, steps)
