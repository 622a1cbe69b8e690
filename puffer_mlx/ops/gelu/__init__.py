"""Exact GELU: plain MLX, or one pass over memory."""

from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.ops.choice import FusedOperation
from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.ops.gpu.launch import launch, numbers
from puffer_mlx.ops.low_precision import float32_on_cpu

TEXT = Path(__file__).with_name("gelu.metal.h")
REFERENCE = Reference(
    "GELU in one pass",
    ("ops.gelu:gelu",),
    test="tests/ops/test_ops.py",
    cost="networks with GELU take longer",
)


def gelu_forward(x: mx.array) -> mx.array:
    """Exact GELU x Phi(x) on a GPU, elementwise: any shape."""
    return launch(TEXT, "gelu_forward", [x, numbers(x.size)], [x.shape], x.size)[0]


def gelu_backward(x: mx.array, dy: mx.array) -> mx.array:
    """Gradient of ``gelu_forward`` for dL/dy = ``dy``, both of one shape."""
    return launch(TEXT, "gelu_backward", [x, dy, numbers(x.size)], [x.shape], x.size)[0]


FORWARD = FusedOperation("gelu_forward", gelu_forward, REFERENCE)
BACKWARD = FusedOperation("gelu_backward", gelu_backward, REFERENCE)


@float32_on_cpu
def gelu(x: mx.array) -> mx.array:
    """Exact GELU x Phi(x) = x (1 + erf(x / sqrt(2))) / 2, elementwise: any shape."""
    if FORWARD.form() is None:
        return 0.5 * x * (1 + mx.erf(x * 0.5**0.5))
    return _gelu(x)  # type: ignore


@mx.custom_function
def _gelu(x: mx.array) -> Any:
    return FORWARD.form()(x)


@_gelu.vjp
def _gelu_vjp(x, dy, _):
    return BACKWARD.form()(x, dy)
