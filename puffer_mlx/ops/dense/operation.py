"""Layers of a network without memory: by MLX, or product, bias and activation in one node.

The extension's form is for tanh and ReLU, whose slope follows from what they give: forward it is
one node, and backward another makes three of the four gradients.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from puffer_mlx.ops.choice import extension_with_products
from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.ops.gelu.operation import gelu
from puffer_mlx.ops.linear.operation import input_gradient, linear
from puffer_mlx.ops.low_precision import float32_on_cpu

REFERENCE = Reference(
    "the extension's layer of product and activation",
    ("ops.dense.operation:dense",),
    test="tests/ops/test_dense.py",
    cost="networks with tanh or ReLU take longer on a CPU",
)


def relu(x: mx.array) -> mx.array:
    """What is above 0."""
    return mx.maximum(x, 0)


ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "gelu": gelu,
    "tanh": mx.tanh,
    "relu": relu,
}


def dense(x: mx.array, weight: mx.array, bias: mx.array, activation: str) -> mx.array:
    """f(x weight^T + bias) (n, M) of x (n, K), weight (M, K) and bias (M,).

    x is cast to the weight's dtype, which is the result's too. ``activation`` is a name of
    ``ACTIVATIONS``; GELU is exact, the extension's tanh off by at most 4e-7.
    """
    fused = FUSED.get(activation)
    if fused is None or extension_with_products(REFERENCE) is None:
        return ACTIVATIONS[activation](linear(x, weight, bias))
    return fused(x.astype(weight.dtype), weight, bias)


def _fused(tanh: bool) -> Any:
    """``dense`` by the extension."""

    @mx.custom_function
    def layer(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        return extension_with_products().dense(x, weight, bias, tanh)

    @layer.vjp
    def gradients(primals, dy, y):
        x, weight, _ = primals
        dz, dweight, dbias = extension_with_products().dense_gradients(x, y, dy, tanh)
        return input_gradient(dz, weight), dweight, dbias

    return float32_on_cpu(layer)  # type: ignore


# Made once: see ops/linear/operation.py.
FUSED = {"tanh": _fused(tanh=True), "relu": _fused(tanh=False)}
