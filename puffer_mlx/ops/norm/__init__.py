"""RMSNorm of a sum: by MLX, or in one pass over memory each way."""

from typing import Any

import mlx.core as mx

from puffer_mlx.ops.choice import extension_on_cpu, fused
from puffer_mlx.ops.low_precision import in_float32

EPSILON = 1.1920929e-07  # float32's, which torch's RMSNorm takes when none is given


@mx.custom_function
def _fused(x: mx.array, residual: mx.array, weight: mx.array) -> Any:
    return tuple(extension_on_cpu().add_rms_norm_forward(x, residual, weight, EPSILON))


@_fused.vjp
def _fused_vjp(primals, cotangents, outputs):
    # The second output is for this function alone: its cotangent is 0.
    dx, dweight = extension_on_cpu().add_rms_norm_backward(*primals, outputs[1], cotangents[0])
    return dx, dx, dweight


@in_float32
@fused(
    "the extension's RMSNorm",
    test="tests/ops/test_ops.py",
    cost="networks that normalise take a little longer on a CPU",
    on_cpu=lambda *arrays: _fused(*arrays)[0],  # type: ignore
)
def add_rms_norm(x: mx.array, residual: mx.array, weight: mx.array) -> mx.array:
    """RMSNorm of a sum: weight (x + residual) / sqrt(mean((x + residual)^2) + EPSILON) of each row.

    Args:
        x: (n, H).
        residual: (n, H).
        weight: (H,).

    Returns:
        (n, H), of x's dtype; what is in between is float32.
    """
    return mx.fast.rms_norm(x + residual, weight, EPSILON)
