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
ONE_BLOCK = 2**19  # advantages: where one block reads more, reading takes longer than a launch


def draw_rows(
    adv: mx.array, uniforms: mx.array, beta: mx.array, alpha: float, epsilon: float
) -> tuple[mx.array, mx.array]:
    """Probabilities of rows, the draw and its weights: ``ppo.priority.choose``, in one launch.

    Of more than ``ONE_BLOCK`` advantages, rows are summed in a launch of their own.

    Args:
        adv: (T, N).
        uniforms: (S,) in (0, 1].
        beta: scalar.
        alpha: what total advantages are raised to.
        epsilon: what each row's weight is raised by, and the sum of all.

    Returns:
        Rows (S,) int32, weights (S,).
    """
    if adv.size > ONE_BLOCK and adv.shape[0] > 1:
        adv = row_sums(adv)[None]
    (T, N), (S,) = adv.shape, uniforms.shape
    settings = numbers(float(alpha), float(epsilon))
    arrays = [adv, uniforms, beta.reshape(1), numbers(T, N, S), settings]
    shapes, block = [(S,), (S,), (N,)], BLOCK[launch.backend()]
    rows, weights, _ = launch.launch(TEXT, "draw_rows", arrays, shapes, block, block, THREADS=block)
    return rows, weights


def row_sums(adv: mx.array) -> mx.array:
    """Sums (N,) of |adv| (T, N) over time."""
    T, N = adv.shape
    return launch.launch(TEXT, "row_sums", [adv, numbers(T, N)], [(N,)], N)[0]
