"""Sample segments by priority: large advantages are sampled more often, with smaller weights."""

import mlx.core as mx

from puffer_mlx.ops.draw import draw_rows
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.system.plain_functions import record

EPS = 1e-6
DRAW = Implementation(
    ("ppo.priority",), "the draw of segments in one call", cpu="draw_rows", gpu=draw_rows
)


def probabilities(adv: mx.array, alpha: float) -> mx.array:
    """Return the sampling probability of each segment: (sum over time of |adv|)^alpha, normalised.

    A constant eps is added to each segment, so that no segment has probability 0. As upstream, it
    is added only once to the denominator, so the probabilities sum to slightly more than 1. NaN and
    infinite powers count as 0.

    Args:
        adv: advantages, (T, N).
        alpha: exponent; 0 for uniform probabilities.

    Returns:
        Probabilities, (N,).
    """
    weight = mx.power(mx.sum(mx.abs(adv), axis=0), alpha)
    weight = mx.where(mx.isfinite(weight), weight, 0)
    return (weight + EPS) / (mx.sum(weight) + EPS)


def draw_segments(p: mx.array, uniforms: mx.array) -> mx.array:
    """Sample segments with replacement, by inverting the cumulative distribution.

    Args:
        p: probability of each segment, (N,).
        uniforms: random numbers, (S,) in (0, 1].

    Returns:
        Segments, (S,) int32 in [0, N): the first one whose cumulative probability reaches the
        uniform number, or the last one.
    """
    cdf = mx.cumsum(p)
    n = p.shape[0]
    row = mx.zeros(uniforms.shape, dtype=mx.int32)  # number of segments with cdf < uniform
    step = 1 << (n.bit_length() - 1)
    while step:  # bisection
        probe = mx.minimum(row + step, n)
        row = mx.where(mx.take(cdf, probe - 1) < uniforms, probe, row)
        step >>= 1
    return mx.minimum(row, n - 1)


def importance_weights(p: mx.array, rows: mx.array, beta: mx.array) -> mx.array:
    """Return the importance weight (N p)^-beta of each sampled segment.

    Args:
        p: probability of each segment, (N,).
        rows: sampled segments, (S,) int32.
        beta: exponent, a scalar array: see ``annealed_beta``.

    Returns:
        Weights, (S,).
    """
    return mx.power(p.shape[0] * mx.take(p, rows), -beta)


def annealed_beta(beta0: float, alpha: float, epoch: int, epochs: int) -> float:
    """Return an epoch's exponent of the importance weights, which increases from ``beta0``.

    The result is beta0 + (1 - beta0) * alpha * epoch / epochs, as in PufferLib.
    """
    return beta0 + (1 - beta0) * alpha * epoch / epochs


def choose_segments(
    adv: mx.array, uniforms: mx.array, beta: mx.array, alpha: float
) -> tuple[mx.array, mx.array]:
    """Sample the segments of a minibatch by priority, in one operation if possible.

    Args:
        adv: advantages, (T, N).
        uniforms: random numbers, (S,) in (0, 1].
        beta: exponent of the importance weights, a scalar array.
        alpha: exponent of the priorities; 0 for uniform priorities.

    Returns:
        Segments (S,) int32 in [0, N), and their importance weights (S,).
    """
    fused = DRAW.choose()
    if fused is not None:
        return tuple(fused(adv, uniforms, beta, alpha, EPS))
    p = probabilities(adv, alpha)
    rows = draw_segments(p, uniforms)
    return rows, importance_weights(p, rows, beta)


record(__name__)
