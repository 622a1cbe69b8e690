"""RMSNorm of a sum: by MLX, or in one pass over memory each way."""

from typing import Any

import mlx.core as mx

from puffer_mlx.ops.choice import extension_on_cpu
from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.ops.low_precision import in_float32

REFERENCE = Reference(
    "the extension's RMSNorm",
    ("ops.norm.operation:add_rms_norm",),
    test="tests/ops/test_ops.py",
    cost="networks that normalise take a little longer on a CPU",
)
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
    if extension_on_cpu(REFERENCE) is None:
        return mx.fast.rms_norm(x + residual, weight, EPSILON)
    return _add_rms_norm(x, residual, weight)[0]  # type: ignore


@mx.custom_function
def _add_rms_norm(x: mx.array, residual: mx.array, weight: mx.array) -> Any:
    return tuple(extension_on_cpu().add_rms_norm_forward(x, residual, weight, EPSILON))


@_add_rms_norm.vjp
def _add_rms_norm_vjp(primals, cotangents, outputs):
    # The second output is for this function alone: its cotangent is 0.
    dx, dweight = extension_on_cpu().add_rms_norm_backward(*primals, outputs[1], cotangents[0])
    return dx, dx, dweight
