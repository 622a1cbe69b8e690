"""How a kernel of a recurrence with a matrix is launched: what ``walk.metal.h`` needs to know."""

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops.gpu import launch
from puffer_mlx.ops.gpu.launch import SHARED_BYTES, Shape, numbers

ENOUGH_BLOCKS = 128  # blocks that keep a large GPU's cores busy
ROWS = {"metal": (4, 2), "cuda": (8, 4, 2)}  # segments of a block to choose from, and 1
CHUNK = {"metal": 4, "cuda": 8}  # inputs whose weights a thread reads ahead


def first_and_keep(
    first: Sequence[mx.array | None], keep: mx.array | None
) -> tuple[list[mx.array], tuple[int, int]]:
    """What a kernel is given of first states and ``keep``, which may be None: zeros, and ones.

    For None nothing is filled: the kernel gets an array whose first number stands for all. It has
    eight, as a smaller one would be in another place on Metal, for which MLX compiles anew.

    Args:
        first: arrays (S, H), or None for each.
        keep: (T, S), or None.

    Returns:
        All of them in their order, keep behind; and how far numbers of the first states, and of
        ``keep``, are apart: 1, or 0.
    """
    zeros, ones = numbers(*[0.0] * 8), numbers(*[1.0] * 8)
    given = [zeros if array is None else array for array in first]
    steps = int(all(array is not None for array in first)), int(keep is not None)
    return [*given, ones if keep is None else keep], steps


def rows_of_block(S: int, H: int, gates: int) -> int:
    """R, the segments that a block of such a kernel walks through time with.

    More of them read the weights less often; fewer make more blocks. What a block shares, R H
    numbers for each gate, must fit.

    Raises:
        UserError: not even one segment's fit.
    """
    chunk = 4 * CHUNK[launch.backend()]
    room = SHARED_BYTES // (4 * -(-gates * H // chunk) * chunk)
    if room < 1:
        most = SHARED_BYTES // (4 * chunk) * chunk // gates
        raise UserError(
            f"a recurrent layer {H} wide is too large for the GPU's kernel",
            f"policy.hidden_size {most} at most, or run on the CPU",
        )
    return next((r for r in ROWS[launch.backend()] if r <= room and r * ENOUGH_BLOCKS <= S), 1)


def launch_recurrence(
    path: Path,
    name: str,
    inputs: Sequence[mx.array],
    outputs: Sequence[Shape],
    sizes: tuple[int, ...],
    gates: int,
    *,
    backward: bool,
) -> list[mx.array]:
    """Run a kernel that multiplies something of each step with weights of ``gates`` gates.

    Args:
        path: see ``launch``.
        name: see ``launch``.
        inputs: in the text's order; but for ``sizes``, the last.
        outputs: shapes in the text's order.
        sizes: T, S, H, and the two that ``first_and_keep`` returns.
        gates: how many rows of the weight belong to a channel.
        backward: a step's gradients (``gates`` H) are multiplied; else its state (H).

    Returns:
        The outputs.
    """
    T, S, H, *steps = sizes
    R, block = rows_of_block(S, H, gates), min(launch.THREADS, -(-H // 32) * 32)
    chunk = CHUNK[launch.backend()]
    # weights of one input for one channel, inputs, and how many of them are a chunk
    G, D, U = (1, gates * H, 4 * chunk) if backward else (gates, H, chunk)
    shape = {"H": H, "R": R, "C": -(-H // block), "THREADS": block, "N": -(-D // U)}
    inputs = [*inputs, numbers(T, S, *steps)]
    threads = -(-S // R) * block
    return launch.launch(path, name, inputs, outputs, threads, block, **shape, G=G, D=D, U=U)
