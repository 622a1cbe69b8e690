"""Draw segments by their priority in a GPU kernel (``draw.metal.h``).

The plain implementation is in ``ppo/priority.py``.
"""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu import launch
from puffer_mlx.ops.gpu.launch import THREADS

KERNEL_FILE = Path(__file__).with_name("draw.metal.h")
# Threads of the kernel's one block: 512 saturate a core's memory, but a Mac may lack registers.
BLOCK_THREADS = {"metal": THREADS, "cuda": 512}


def draw_rows(
    adv: mx.array, uniforms: mx.array, beta: mx.array, alpha: float, epsilon: float
) -> tuple[mx.array, mx.array]:
    """Draw segments for a minibatch by their priorities in one launch, as ``choose_segments`` does.

    Args:
        adv: advantages (T, N), or sums of their magnitudes (1, N).
        uniforms: uniform random numbers (S,) in (0, 1].
        beta: exponent of the importance weights, a scalar array.
        alpha: exponent of the sums of magnitudes, which gives the priorities.
        epsilon: added to each priority and to the sum of priorities.

    Returns:
        Indices (S,) int32 of the drawn segments, in [0, N), and importance weights (S,).
    """
    (T, N), (S,) = adv.shape, uniforms.shape
    coefficients = {"alpha": float(alpha), "epsilon": float(epsilon)}
    arrays = [adv, uniforms, beta.reshape(1), {"T": T, "N": N, "S": S}, coefficients]
    shapes, block = [(S,), (S,), (N,)], BLOCK_THREADS[launch.kernel_backend()]
    rows, weights, _ = launch.launch(
        KERNEL_FILE, "draw_rows", arrays, shapes, block, block, THREADS=block
    )
    return rows, weights
