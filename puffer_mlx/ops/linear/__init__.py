"""Linear layers with optional activations, and their gradients.

They are computed by MLX or by the C++ extension, which runs a BLAS in its threads. For tanh and
ReLU, the extension's ``dense`` computes product, bias and activation in one node of the graph, and
in the backward pass one node computes three of the four gradients: the slopes of these two
activations follow from the layer's outputs.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.gelu import gelu
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.low_precision import float32_on_cpu, in_float32
from puffer_mlx.system.backend import backend
from puffer_mlx.system.plain_functions import record

PLAIN_MODULES = ("ops.linear",)
PRODUCT = Implementation(
    PLAIN_MODULES, "the extension's product of matrices", cpu="linear", gemm=True
)
BIAS = Implementation(PLAIN_MODULES, "the extension's sum over rows", cpu="linear_bias_gradient")
DENSE = Implementation(
    PLAIN_MODULES, "the extension's dense layer", cpu="dense_gradients", gemm=True
)


def _extension() -> Any:
    """Return the C++ extension, which is known to be loaded."""
    return cpu_extension.load_extension()


def linear(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Apply a linear layer: x weight^T + bias.

    Args:
        x: (..., K); cast to the weight's dtype.
        weight: (M, K).
        bias: (M,), or None.

    Returns:
        (..., M) of the weight's dtype.
    """
    return _linear(x.astype(weight.dtype), weight, bias)


@float32_on_cpu
def _linear(x: mx.array, weight: mx.array, bias: mx.array | None) -> mx.array:
    biases = () if bias is None else (bias,)
    if PRODUCT.choose() is not None:
        rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
        product = _linear_rows(rows, weight, *biases)
        return product if x.ndim == 2 else product.reshape(*x.shape[:-1], -1)
    if backend() != "cpu":
        return _rows_on_gpu(x, weight, *biases)  # type: ignore
    return x @ weight.T if bias is None else mx.addmm(bias, x, weight.T)


def linear_columns(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Apply a linear layer with a transposed result: weight x^T + bias.

    Args:
        x: (n, K); cast to the weight's dtype.
        weight: (M, K).
        bias: (M,), or None.

    Returns:
        (M, n) of the weight's dtype.
    """
    return _columns(x.astype(weight.dtype), weight, bias)


@float32_on_cpu
def _columns(x: mx.array, weight: mx.array, bias: mx.array | None) -> mx.array:
    if PRODUCT.choose() is not None:
        return _linear_columns(x, weight, *(() if bias is None else (bias,)))
    y = _columns_on_gpu(x, weight) if backend() != "cpu" else weight @ x.T
    return y if bias is None else plus(y, bias[:, None])  # type: ignore


@in_float32
def plus(x: mx.array, y: mx.array) -> mx.array:
    """Add two arrays, one broadcast to the other's shape. Its gradient is summed in float32."""
    return x + y


@float32_on_cpu
def input_gradient(dy: mx.array, weight: mx.array, add: mx.array | None = None) -> mx.array:
    """Return a linear layer's gradient with respect to its input.

    Args:
        dy: (n, M), gradient with respect to the output.
        weight: (M, K).
        add: (n, K), added to the result; None adds nothing.

    Returns:
        (n, K).
    """
    if PRODUCT.choose() is not None:
        return _extension().linear_input_gradient(dy, weight, False, add)
    return dy @ weight if add is None else mx.addmm(add, dy, weight)


@float32_on_cpu
def weight_gradient(dy: mx.array, x: mx.array) -> mx.array:
    """Return a linear layer's gradient (M, K) with respect to its weight: dy (n, M), x (n, K)."""
    if PRODUCT.choose() is not None:
        return _extension().linear_weight_gradient(dy, x, False)
    return dy.T @ x


@in_float32
def bias_gradient(dy: mx.array) -> mx.array:
    """Return a linear layer's gradient (M,) with respect to its bias: dy (n, M)."""
    fused = BIAS.choose()
    return mx.sum(dy, axis=0) if fused is None else fused(dy, False)


def _threaded_linear(columns: bool) -> Any:
    """Create the extension's linear layer: ``linear_columns`` if ``columns``, else ``linear``."""

    @mx.custom_function
    def product(x: mx.array, weight: mx.array, *bias: mx.array) -> mx.array:
        return _extension().linear(x, weight, columns, *bias)

    @product.vjp
    def gradients(primals, dy, _):
        x, weight, *bias = primals
        extension = _extension()
        return (
            extension.linear_input_gradient(dy, weight, columns),
            extension.linear_weight_gradient(dy, x, columns),
            *(extension.linear_bias_gradient(dy, columns) for _ in bias),
        )

    return product


# Never deleted: MLX may abort if a compiled function refers to a deleted custom function.
_linear_rows, _linear_columns = _threaded_linear(columns=False), _threaded_linear(columns=True)


# The gradients below are written out for GPUs because MLX's have two disadvantages. It computes the
# transposed gradient of a transposed factor (the weight; in ``linear_columns`` the input), which
# costs a copy when rows are read. It also sums a bias's gradient in the bias's dtype.


@mx.custom_function
def _rows_on_gpu(x: mx.array, weight: mx.array, *bias: mx.array) -> Any:
    """Compute a linear layer on a GPU: see ``linear``."""
    return mx.addmm(bias[0], x, weight.T) if bias else x @ weight.T


@_rows_on_gpu.vjp
def _rows_on_gpu_vjp(primals, dy, _):
    x, weight, *bias = primals
    rows, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    dx = input_gradient(dy, weight).reshape(x.shape)
    return dx, weight_gradient(dy, rows), *(bias_gradient(dy) for _ in bias)


@mx.custom_function
def _columns_on_gpu(x: mx.array, weight: mx.array) -> Any:
    """Compute a linear layer without bias on a GPU: see ``linear_columns``."""
    return weight @ x.T


@_columns_on_gpu.vjp
def _columns_on_gpu_vjp(primals, dy, _):
    x, weight = primals
    return dy.T @ weight, dy @ x


# ---- with an activation --------------------------------------------------------------------------


def relu(x: mx.array) -> mx.array:
    """Apply the ReLU activation, max(x, 0), elementwise."""
    return mx.maximum(x, 0)


ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "gelu": gelu,
    "tanh": mx.tanh,
    "relu": relu,
}


ACTIVATION_CODES = {"": 0, "gelu": 1, "tanh": 2, "relu": 3}  # as in ops/cpu/activations.h


def dense(x: mx.array, weight: mx.array, bias: mx.array, activation: str) -> mx.array:
    """Apply a linear layer and an activation: f(x weight^T + bias).

    Args:
        x: (n, K); cast to the weight's dtype.
        weight: (M, K).
        bias: (M,).
        activation: name in ``ACTIVATIONS``. GELU is exact; the extension's tanh is off by at most
            4e-7.

    Returns:
        (n, M) of the weight's dtype.
    """
    fused = FUSED_LAYERS.get(activation)
    if fused is None or DENSE.choose() is None:
        return ACTIVATIONS[activation](linear(x, weight, bias))
    return fused(x.astype(weight.dtype), weight, bias)


def _fused_dense(code: int) -> Any:
    @mx.custom_function
    def layer(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        return _extension().linear(x, weight, False, bias, code)

    @layer.vjp
    def gradients(primals, dy, y):
        x, weight, _ = primals
        dz, dweight, dbias = _extension().dense_gradients(x, y, dy, code)
        return input_gradient(dz, weight), dweight, dbias

    return float32_on_cpu(layer)  # type: ignore


FUSED_LAYERS = {
    name: _fused_dense(ACTIVATION_CODES[name]) for name in ("tanh", "relu")
}  # never deleted, see above

record(__name__)
