"""Exact GELU: plain MLX, or one pass over memory."""

from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import launch
from puffer_mlx.ops.implementation import implementation
from puffer_mlx.ops.low_precision import float32_on_cpu
from puffer_mlx.system.plain_functions import record

TEXT = Path(__file__).with_name("gelu.metal.h")
NAME = "GELU in one pass"


def gelu_forward(x: mx.array) -> mx.array:
    """Exact GELU x Phi(x) on a GPU, elementwise: any shape."""
    return launch(TEXT, "gelu_forward", [x, {"n": x.size}], [x.shape], x.size)[0]


def gelu_backward(x: mx.array, dy: mx.array) -> mx.array:
    """Gradient of ``gelu_forward`` for dL/dy = ``dy``, both of one shape."""
    return launch(TEXT, "gelu_backward", [x, dy, {"n": x.size}], [x.shape], x.size)[0]


PLAIN = ("ops.gelu",)
FORWARD = implementation(PLAIN, NAME, cpu="gelu_forward", gpu=gelu_forward, float32=())
BACKWARD = implementation(PLAIN, NAME, cpu="gelu_backward", gpu=gelu_backward, float32=())


@float32_on_cpu
def gelu(x: mx.array) -> mx.array:
    """Exact GELU x Phi(x) = x (1 + erf(x / sqrt(2))) / 2, elementwise: any shape."""
    if FORWARD.choose() is None:
        return 0.5 * x * (1 + mx.erf(x * 0.5**0.5))
    return _gelu(x)  # type: ignore


@mx.custom_function
def _gelu(x: mx.array) -> Any:
    return FORWARD.choose()(x)


@_gelu.vjp
def _gelu_vjp(x, dy, _):
    return BACKWARD.choose()(x, dy)


record(__name__)
