"""RMSNorm of the sum of two arrays: by MLX, or in C++ with one pass over memory."""

from functools import partial
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.low_precision import in_float32
from puffer_mlx.system.plain_functions import record

EPSILON = 1.1920929e-07  # float32's machine epsilon, the default of PyTorch's RMSNorm


def _extension() -> Any:
    """Return the C++ extension, which is known to be loaded."""
    return cpu_extension.load_extension()


@mx.custom_function
def _fused(x: mx.array, residual: mx.array, weight: mx.array) -> Any:
    return tuple(_extension().add_rms_norm_forward(x, residual, weight, EPSILON))


@_fused.vjp
def _fused_vjp(primals, cotangents, outputs):
    # The second output is used only here, so its cotangent is 0.
    dx, dweight = _extension().add_rms_norm_backward(*primals, outputs[1], cotangents[0])
    return dx, dx, dweight


def _add_rms_norm_on_cpu(*arrays: mx.array) -> mx.array:
    return _fused(*arrays)[0]  # type: ignore


@in_float32
@partial(Implementation, name="the extension's RMSNorm", cpu=_add_rms_norm_on_cpu)
def add_rms_norm(x: mx.array, residual: mx.array, weight: mx.array) -> mx.array:
    """Compute the RMSNorm of x + residual for each row.

    The result is weight (x + residual) / sqrt(mean((x + residual)^2) + EPSILON).

    Args:
        x: (n, H).
        residual: (n, H).
        weight: (H,).

    Returns:
        (n, H) of x's dtype. Intermediate results are float32.
    """
    return mx.fast.rms_norm(x + residual, weight, EPSILON)


record(__name__)
