"""Operations with a fused form on some devices and a pure MLX form as reference and fallback.

On the CPU the fused forms are C (``cpu_extension.py``), on a GPU they are kernels (``gpu/``). The
default device at the time a function is traced decides.

Activations and weights may be float32, bfloat16 or float16: a result has the dtype of what it was
made of, and a gradient that of what it is a gradient by. Sums are taken in float32 everywhere; on a
CPU, so is the rest, between casts (``low_precision.py``). Recurrent states are float32, or many
small steps would be rounded away.
"""

import functools
from types import SimpleNamespace
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.discount import gpu as discount_gpu
from puffer_mlx.ops.gelu import gpu as gelu_gpu
from puffer_mlx.ops.gpu import gru as gru_gpu
from puffer_mlx.ops.gpu import lstm as lstm_gpu
from puffer_mlx.ops.gpu import mingru as mingru_gpu
from puffer_mlx.ops.low_precision import LOW, float32_on_cpu, in_float32

# The operations that the extension has in common with the kernels, and which of their results stay
# float32: states and gradients by states.
FUSED: dict[str, tuple[int, ...]] = {
    "mingru_forward": (1,),
    "mingru_backward": (2,),
    "lstm_forward": (0, 1),
    "lstm_backward": (1, 2),
    "gru_forward": (0,),
    "gru_backward": (2,),
    "gelu_forward": (),
    "gelu_backward": (),
    "discount": (),
}


_KERNELS = SimpleNamespace(
    mingru_forward=mingru_gpu.mingru_forward,
    mingru_backward=mingru_gpu.mingru_backward,
    lstm_forward=lstm_gpu.lstm_forward,
    lstm_backward=lstm_gpu.lstm_backward,
    gru_forward=gru_gpu.gru_forward,
    gru_backward=gru_gpu.gru_backward,
    gelu_forward=gelu_gpu.gelu_forward,
    gelu_backward=gelu_gpu.gelu_backward,
    discount=discount_gpu.discount,
)


def extension_here() -> Any:
    """The C extension where the default device is a CPU that has it, else None."""
    return cpu_extension.load() if mx.default_device() == mx.cpu else None


@functools.cache
def _for_any_dtype(extension: Any) -> SimpleNamespace:
    """What is ``FUSED`` of the extension, which knows float32 alone."""
    forms = {name: in_float32(getattr(extension, name), stay) for name, stay in FUSED.items()}
    return SimpleNamespace(**forms)


def fused() -> Any:
    """The operations that are ``FUSED`` on the default device, or None where there are none."""
    if mx.default_device() != mx.cpu:
        return _KERNELS
    extension = extension_here()
    return None if extension is None else _for_any_dtype(extension)


def _threads_products() -> bool:
    """Whether the extension multiplies: where a BLAS would wait busily, or is a Mac's own."""
    return extension_with_products() is not None


def extension_with_products() -> Any:
    """The C extension where the default device is a CPU and it multiplies matrices, else None."""
    extension = extension_here()
    return extension if extension is not None and extension.has_gemm() else None


def linear(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Product x weight^T (n, M) of x (n, K) and weight (M, K), plus bias (M,).

    x is cast to the weight's dtype, which is the result's too.
    """
    return _linear(x.astype(weight.dtype), weight, bias)


@float32_on_cpu
def _linear(x: mx.array, weight: mx.array, bias: mx.array | None) -> mx.array:
    if _threads_products():
        return _linear_rows(x, weight) if bias is None else _affine_rows(x, weight, bias)  # type: ignore
    if bias is None:
        return x @ weight.T
    return _low_affine(x, weight, bias) if x.dtype in LOW else mx.addmm(bias, x, weight.T)  # type: ignore


def linear_columns(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Product weight x^T (M, n) of x (n, K) and weight (M, K), plus bias (M,): see ``linear``."""
    return _columns(x.astype(weight.dtype), weight, bias)


@float32_on_cpu
def _columns(x: mx.array, weight: mx.array, bias: mx.array | None) -> mx.array:
    if _threads_products():
        return _linear_columns(x, weight) if bias is None else _affine_columns(x, weight, bias)  # type: ignore
    y = weight @ x.T
    return y if bias is None else plus(y, bias[:, None])  # type: ignore


@in_float32
def plus(x: mx.array, y: mx.array) -> mx.array:
    """Sum of which one part is broadcast: that one's gradient is a sum, taken in float32."""
    return x + y


@float32_on_cpu
def input_gradient(dy: mx.array, weight: mx.array, add: mx.array | None = None) -> mx.array:
    """Gradient (n, K) of ``linear`` by its input, plus ``add`` (n, K): dy (n, M), weight (M, K)."""
    if _threads_products():
        return extension_here().linear_input_gradient(dy, weight, False, add)
    return dy @ weight if add is None else mx.addmm(add, dy, weight)


@float32_on_cpu
def weight_gradient(dy: mx.array, x: mx.array) -> mx.array:
    """Gradient (M, K) of ``linear`` by its weight: dy (n, M), x (n, K)."""
    if _threads_products():
        return extension_here().linear_weight_gradient(dy, x, False)
    return dy.T @ x


@in_float32
def bias_gradient(dy: mx.array) -> mx.array:
    """Gradient (M,) of ``linear`` by its bias: dy (n, M)."""
    extension = extension_here()
    return mx.sum(dy, axis=0) if extension is None else extension.linear_bias_gradient(dy, False)


@float32_on_cpu
def recurrent_weight_gradient(
    dy: mx.array, states: mx.array, first: mx.array, keep: mx.array
) -> mx.array:
    """Gradient by a weight that multiplies the state before each step.

    Args:
        dy: (T, S, M), gradient by the products.
        states: (T, S, H) float32, after each step.
        first: (S, H) float32, before the first step.
        keep: (T, S) float32, what a state is multiplied by before the step that follows it.

    Returns:
        (M, H), of dy's dtype.
    """
    if _threads_products():
        return extension_here().recurrent_weight_gradient(dy, states, first, keep)
    before = (mx.concatenate([first[None], states[:-1]]) * keep[..., None]).astype(dy.dtype)
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
        return extension_here().linear(x, weight, columns, *bias)

    @product.vjp
    def gradients(primals, dy, _):
        x, weight = primals[:2]
        extension = extension_here()
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


@mx.custom_function
def _low_affine(x: mx.array, weight: mx.array, bias: mx.array) -> Any:
    """``linear`` with bias in low precision on a GPU: MLX sums a bias's gradient in its dtype."""
    return mx.addmm(bias, x, weight.T)


@_low_affine.vjp
def _low_affine_vjp(primals, dy, _):
    return input_gradient(dy, primals[1]), weight_gradient(dy, primals[0]), bias_gradient(dy)


@float32_on_cpu
def gelu(x: mx.array) -> mx.array:
    """Exact GELU x Phi(x) = x (1 + erf(x / sqrt(2))) / 2, elementwise: any shape."""
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


@in_float32
def add_rms_norm(x: mx.array, residual: mx.array, weight: mx.array) -> mx.array:
    """RMSNorm of a sum: weight (x + residual) / sqrt(mean((x + residual)^2) + EPSILON) of each row.

    Args:
        x: (n, H).
        residual: (n, H).
        weight: (H,).

    Returns:
        (n, H), of x's dtype; what is in between is float32.
    """
    if extension_here() is None:
        return mx.fast.rms_norm(x + residual, weight, EPSILON)
    return _add_rms_norm(x, residual, weight)[0]  # type: ignore


@mx.custom_function
def _add_rms_norm(x: mx.array, residual: mx.array, weight: mx.array) -> Any:
    return tuple(extension_here().add_rms_norm_forward(x, residual, weight, EPSILON))


@_add_rms_norm.vjp
def _add_rms_norm_vjp(primals, cotangents, outputs):
    # The second output is for this function alone: its cotangent is 0.
    dx, dweight = extension_here().add_rms_norm_backward(*primals, outputs[1], cotangents[0])
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


def factors_of(keep: mx.array | None, T: int) -> list[mx.array | None]:
    """What each of T steps multiplies its state by, (S, 1): keep (T, S), or nothing.

    Slices, as no gradient goes through ``keep``: those of ``steps_of`` make MLX 0.32.4 fail to
    compile two layers that take the same ones ("_Map_base::at").
    """
    return [None if keep is None else keep[t, :, None] for t in range(T)]


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
    extension = extension_here()
    if extension is None:
        return mx.take(source[:steps], rows, axis=1)
    return extension.take_rows(source, rows, steps)
