"""Activation functions, and initial weights of layers.

``tanh`` and ``logistic`` use only arithmetic, which ``mx.compile`` fuses and vectorises. On a Linux
CPU, MLX's functions take six times as long. PufferLib acts with the same approximation. For 16-bit
inputs they compute in float32, because some coefficients underflow in float16.
"""

import math
from typing import Any

import mlx.core as mx

from puffer_mlx.config import Policy
from puffer_mlx.errors import UserError
from puffer_mlx.ops.low_precision import in_float32
from puffer_mlx.system.plain_functions import record


@in_float32
def _rational_tanh(x: mx.array) -> mx.array:
    x = mx.clip(x, -7.9053111, 7.9053111)
    s = x * x
    p = -8.60467152213735e-11 + s * (2.00018790482477e-13 - s * 2.76076847742355e-16)
    p = 1.48572235717979e-05 + s * (5.12229709037114e-08 + s * p)
    p = x * (4.89352455891786e-03 + s * (6.37261928875436e-04 + s * p))
    q = 1.18534705686654e-04 + s * 1.19825839466702e-06
    q = 4.89352518554385e-03 + s * (2.26843463243900e-03 + s * q)
    return p / q


@mx.custom_function
def tanh(x: mx.array) -> Any:
    """Return the hyperbolic tangent, by a rational approximation with absolute error 4e-7."""
    return _rational_tanh(x)


@tanh.vjp
def _tanh_vjp(_, cotangent, out):
    return cotangent * (1 - out * out)


@mx.custom_function
def logistic(x: mx.array) -> Any:
    """Return the logistic function, by a rational approximation with absolute error 4e-7."""
    return 0.5 * _rational_tanh(0.5 * x) + 0.5


@logistic.vjp
def _logistic_vjp(_, cotangent, out):
    return cotangent * out * (1 - out)


SB3_GAIN = 2**0.5  # of orthogonal initial weights before an activation, for policy.dialect sb3


def chosen_activation(policy: Policy) -> str:
    """Return the name of the activation that a policy uses.

    Args:
        policy: Section [policy] of a configuration, with ``activation`` and ``dialect``.

    Raises:
        UserError: If ``policy.dialect`` doesn't support the activation.
    """
    default = "tanh" if policy.dialect == "sb3" else "gelu"
    chosen = default if policy.activation == "auto" else policy.activation
    if policy.dialect != "sb3" and chosen != default:
        raise UserError(
            f"policy.activation {chosen} needs policy.dialect sb3; policy.dialect"
            f" {policy.dialect} uses {default}, as PufferLib does",
            f"policy.dialect sb3, or policy.activation {default}",
        )
    return chosen


def uniform(key: mx.array, shape: tuple[int, ...], bound: float) -> mx.array:
    """Return a random initial weight of a given shape, uniform within ±bound."""
    return mx.random.uniform(-bound, bound, shape, key=key)


def uniform_layer(key: mx.array, shape: tuple[int, ...]) -> dict[str, mx.array]:
    """Return a layer's initial weight (O, ...) and bias (O,), uniform within ±1/sqrt(inputs)."""
    bound = math.prod(shape[1:]) ** -0.5
    weight, bias = mx.random.split(key)
    return {"weight": uniform(weight, shape, bound), "bias": uniform(bias, shape[:1], bound)}


def orthogonal_layer(
    key: mx.array, shape: tuple[int, int], gain: float = 1.0
) -> dict[str, mx.array]:
    """Return a linear layer's initial weight, which is orthogonal, and bias, which is 0."""
    return {"weight": orthogonal(key, shape, gain), "bias": mx.zeros(shape[0])}


def orthogonal(key: mx.array, shape: tuple[int, int], gain: float = 1.0) -> mx.array:
    """Return a random orthogonal matrix, multiplied by a gain.

    The rows of the matrix are orthonormal, or its columns if these are fewer.
    """
    rows, columns = shape
    normal = mx.random.normal((max(shape), min(shape)), key=key)
    q, r = mx.linalg.qr(normal, stream=mx.cpu)  # MLX has no QR decomposition for GPUs
    diagonal = mx.diag(r, stream=mx.cpu)  # indexing would take 2.6 s to compile on CUDA
    mx.eval(q, diagonal)  # before another device reads them
    q = q * mx.where(diagonal < 0, -1.0, 1.0)  # makes the factorisation unique
    return gain * (q if rows >= columns else q.T)


record(__name__)
