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


def linear(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Product x weight^T (n, M) of x (n, K) float32 and weight (M, K), plus bias (M,)."""
    if _threads_products():
        return _linear_rows(x, weight) if bias is None else _affine_rows(x, weight, bias)  # type: ignore
    return x @ weight.T if bias is None else mx.addmm(bias, x, weight.T)


def linear_columns(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Product weight x^T (M, n) of x (n, K) float32 and weight (M, K), plus bias (M,)."""
    if _threads_products():
        return _linear_columns(x, weight) if bias is None else _affine_columns(x, weight, bias)  # type: ignore
    y = weight @ x.T
    return y if bias is None else y + bias[:, None]  # type: ignore


def input_gradient(dy: mx.array, weight: mx.array, add: mx.array | None = None) -> mx.array:
    """Gradient (n, K) of ``linear`` by its input, plus ``add`` (n, K): dy (n, M), weight (M, K)."""
    if _threads_products():
        return _extension().linear_input_gradient(dy, weight, False, add)
    return dy @ weight if add is None else mx.addmm(add, dy, weight)


def weight_gradient(dy: mx.array, x: mx.array) -> mx.array:
    """Gradient (M, K) of ``linear`` by its weight: dy (n, M), x (n, K)."""
    if _threads_products():
        return _extension().linear_weight_gradient(dy, x, False)
    return dy.T @ x


def bias_gradient(dy: mx.array) -> mx.array:
    """Gradient (M,) of ``linear`` by its bias: dy (n, M)."""
    extension = _extension()
    return mx.sum(dy, axis=0) if extension is None else extension.linear_bias_gradient(dy, False)


def recurrent_weight_gradient(
    dy: mx.array, states: mx.array, first: mx.array, keep: mx.array
) -> mx.array:
    """Gradient by a weight that multiplies the state before each step.

    Args:
        dy: (T, S, M), gradient by the products.
        states: (T, S, H), after each step.
        first: (S, H), before the first step.
        keep: (T, S), what a state is multiplied by before the step that follows it.

    Returns:
        (M, H).
    """
    if _threads_products():
        return _extension().recurrent_weight_gradient(dy, states, first, keep)
    before = mx.concatenate([first[None], states[:-1]]) * keep[..., None]
    return dy.reshape(-1, dy.shape[-1]).T @ before.reshape(-1, states.shape[-1])


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
    return input_gradient(dy, weight, add), weight_gradient(dy, x)


def _threaded_linear(columns: bool, biased: bool):
    """``linear``, or ``linear_columns`` if ``columns``, computed by the extension."""

    @mx.custom_function
    def product(x: mx.array, weight: mx.array, *bias: mx.array) -> mx.array:
        return _extension().linear(x, weight, columns, *bias)

    @product.vjp
    def gradients(primals, dy, _):
        x, weight = primals[:2]
        extension = _extension()
        found = (
            extension.linear_input_gradient(dy, weight, columns),
            extension.linear_weight_gradient(dy, x, columns),
        )
        return (*found, extension.linear_bias_gradient(dy, columns)) if biased else found

    return product


# Made once: MLX may abort when a custom function goes while a compiled function refers to it.
_linear_rows = _threaded_linear(columns=False, biased=False)
_linear_columns = _threaded_linear(columns=True, biased=False)
_affine_rows = _threaded_linear(columns=False, biased=True)
_affine_columns = _threaded_linear(columns=True, biased=True)


def gelu(x: mx.array) -> mx.array:
    """Exact GELU x Phi(x) = x (1 + erf(x / sqrt(2))) / 2, elementwise: any shape, float32."""
    if fused() is None:
        return 0.5 * x * (1 + mx.erf(x * 0.5**0.5))
    return _gelu(x)  # type: ignore


@mx.custom_function
def _gelu(x: mx.array) -> Any:
    return fused().gelu_forward(x)


@_gelu.vjp
def _gelu_vjp(x, dy, _):
    return fused().gelu_backward(x, dy)


EPSILON = 1.1920929e-07  # float32's, which torch's RMSNorm takes when none is given


def add_rms_norm(x: mx.array, residual: mx.array, weight: mx.array) -> mx.array:
    """RMSNorm of a sum: weight (x + residual) / sqrt(mean((x + residual)^2) + EPSILON) of each row.

    Args:
        x: (n, H) float32.
        residual: (n, H) float32.
        weight: (H,) float32.

    Returns:
        (n, H).
    """
    if _extension() is None:
        return mx.fast.rms_norm(x + residual, weight, EPSILON)
    return _add_rms_norm(x, residual, weight)[0]  # type: ignore


@mx.custom_function
def _add_rms_norm(x: mx.array, residual: mx.array, weight: mx.array) -> Any:
    return tuple(_extension().add_rms_norm_forward(x, residual, weight, EPSILON))


@_add_rms_norm.vjp
def _add_rms_norm_vjp(primals, cotangents, outputs):
    # The second output is for this function alone: its cotangent is 0.
    dx, dweight = _extension().add_rms_norm_backward(*primals, outputs[1], cotangents[0])
    return dx, dx, dweight


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
