"""Exact GELU activation: plain MLX, or one pass over memory on a CPU."""

from typing import Any

import mlx.core as mx

from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.low_precision import in_float32
from puffer_mlx.system.plain_functions import record

NAME = "GELU in one pass"
FORWARD = Implementation(("ops.gelu",), NAME, cpu="gelu_forward")
BACKWARD = Implementation(("ops.gelu",), NAME, cpu="gelu_backward")


@in_float32
def gelu(x: mx.array) -> mx.array:
    """Compute exact GELU elementwise: x Phi(x) = x (1 + erf(x / sqrt(2))) / 2, for any shape."""
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
