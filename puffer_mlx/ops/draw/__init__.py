"""Draw segments by priority on a GPU (``draw.metal.h``).

The plain implementation is ``ppo/priority.py``.
"""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu import launch
from puffer_mlx.ops.gpu.launch import THREADS

TEXT = Path(__file__).with_name("draw.metal.h")
# Threads of the only block: 512 saturate a core's memory. A Mac may lack registers for them.
BLOCK = {"metal": THREADS, "cuda": 512}


def draw_rows(
    adv: mx.array, uniforms: mx.array, beta: mx.array, alpha: float, epsilon: float
) -> tuple[mx.array, mx.array]:
    """Draw rows by their probabilities, as ``ppo.priority.choose_segments``, in one launch.

    Args:
        adv: advantages (T, N), or sums of their magnitudes (1, N).
        uniforms: uniform random numbers (S,) in (0, 1].
        beta: exponent of the importance weights, a scalar array.
        alpha: exponent of the sums of magnitudes.
        epsilon: added to each row's priority and to the sum of priorities.

    Returns:
        Rows (S,) int32, weights (S,).
    """
    (T, N), (S,) = adv.shape, uniforms.shape
    settings = {"alpha": float(alpha), "epsilon": float(epsilon)}
    arrays = [adv, uniforms, beta.reshape(1), {"T": T, "N": N, "S": S}, settings]
    shapes, block = [(S,), (S,), (N,)], BLOCK[launch.backend()]
    rows, weights, _ = launch.launch(TEXT, "draw_rows", arrays, shapes, block, block, THREADS=block)
    return rows, weights
