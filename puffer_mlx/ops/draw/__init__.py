"""The draw of segments by priority on a GPU: ``draw.metal.h``, with the CPU extension's arguments.

The plain form is ``ppo/priority.py``.
"""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu import launch
from puffer_mlx.ops.gpu.launch import THREADS, numbers

TEXT = Path(__file__).with_name("draw.metal.h")
# Threads of the one block: a core's memory is busy with 512. A Mac may have no registers for them.
BLOCK = {"metal": THREADS, "cuda": 512}


def draw_rows(
    adv: mx.array, uniforms: mx.array, beta: mx.array, alpha: float, epsilon: float
) -> tuple[mx.array, mx.array]:
    """Probabilities of rows, the draw and its weights: ``ppo.priority.choose``, in one launch.

    Args:
        adv: (T, N); or (1, N), the sums of their magnitudes.
        uniforms: (S,) in (0, 1].
        beta: scalar.
        alpha: what total advantages are raised to.
        epsilon: what each row's weight is raised by, and the sum of all.

    Returns:
        Rows (S,) int32, weights (S,).
    """
    (T, N), (S,) = adv.shape, uniforms.shape
    settings = numbers(float(alpha), float(epsilon))
    arrays = [adv, uniforms, beta.reshape(1), numbers(T, N, S), settings]
    shapes, block = [(S,), (S,), (N,)], BLOCK[launch.backend()]
    rows, weights, _ = launch.launch(TEXT, "draw_rows", arrays, shapes, block, block, THREADS=block)
    return rows, weights
