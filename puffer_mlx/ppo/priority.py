"""Prioritised segments: rows with larger advantages are drawn more often, and weighted down."""

import mlx.core as mx

from puffer_mlx.ops.draw import draw_rows
from puffer_mlx.ops.implementation import implementation
from puffer_mlx.system.plain_functions import record

EPS = 1e-6
DRAW = implementation(
    ("ppo.priority",),
    "the draw of segments in one call",
    cpu="draw_rows",
    gpu=draw_rows,
    float32=(),
)


def probabilities(adv: mx.array, alpha: float) -> mx.array:
    """Probability of each row, proportional to its total absolute advantage to the power alpha.

    Not normalised exactly, as upstream: eps is added to every row but only once to their sum, so
    the sum exceeds 1 a little, and a row without advantage keeps a chance. A weight that is NaN or
    infinite counts as 0.

    Args:
        adv: (T, N).
        alpha: 0 = uniform.

    Returns:
        (N,).
    """
    weight = mx.power(mx.sum(mx.abs(adv), axis=0), alpha)
    weight = mx.where(mx.isfinite(weight), weight, 0)
    return (weight + EPS) / (mx.sum(weight) + EPS)


def draw(p: mx.array, uniforms: mx.array) -> mx.array:
    """Draw with replacement: the first row whose cumulative probability reaches the uniform.

    Args:
        p: (N,) from ``probabilities``.
        uniforms: (S,) in (0, 1].

    Returns:
        (S,) int32 in [0, N); the last row where none reaches it.
    """
    cdf = mx.cumsum(p)
    n = p.shape[0]
    row = mx.zeros(uniforms.shape, dtype=mx.int32)  # counts the rows whose cdf is below the uniform
    step = 1 << (n.bit_length() - 1)
    while step:  # bisection: log2(N) gathers of S numbers
        probe = mx.minimum(row + step, n)
        row = mx.where(mx.take(cdf, probe - 1) < uniforms, probe, row)
        step >>= 1
    return mx.minimum(row, n - 1)


def importance(p: mx.array, rows: mx.array, beta: mx.array) -> mx.array:
    """Importance weight (N p)^-beta of each drawn row.

    Args:
        p: (N,) from ``probabilities``.
        rows: (S,) from ``draw``.
        beta: scalar exponent, see ``annealed_beta``.

    Returns:
        (S,).
    """
    return mx.power(p.shape[0] * mx.take(p, rows), -beta)


def annealed_beta(beta0: float, alpha: float, epoch: int, epochs: int) -> float:
    """beta0 + (1 - beta0) * alpha * epoch / epochs; alpha scales the annealing as upstream."""
    return beta0 + (1 - beta0) * alpha * epoch / epochs


def choose(
    adv: mx.array, uniforms: mx.array, beta: mx.array, alpha: float
) -> tuple[mx.array, mx.array]:
    """Choose the rows of a minibatch by priority, in one operation if possible.

    Args:
        adv: advantages, (T, N).
        uniforms: random numbers, (S,) in (0, 1].
        beta: exponent of the importance weights, a scalar array.
        alpha: exponent of the priorities; 0 for uniform ones.

    Returns:
        Rows (S,) int32 in [0, N), and their importance weights (S,).
    """
    fused = DRAW.choose()
    if fused is not None:
        return tuple(fused(adv, uniforms, beta, alpha, EPS))
    p = probabilities(adv, alpha)
    rows = draw(p, uniforms)
    return rows, importance(p, rows, beta)


record(__name__)
