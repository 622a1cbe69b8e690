"""What recurrences share: steps in plain MLX, a weight's gradient, and the launch of kernels.

The weight multiplies a state at every step; ``walk.metal.h`` says how its kernels walk.
"""

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops.gpu import launch
from puffer_mlx.ops.gpu.launch import SHARED_BYTES, Shape, numbers
from puffer_mlx.ops.implementation import implementation
from puffer_mlx.ops.low_precision import float32_on_cpu
from puffer_mlx.system.backend import backend
from puffer_mlx.system.plain_functions import record

WEIGHT_GRADIENT = implementation(
    ("ops.recurrence",),
    "the extension's gradient by a recurrent weight",
    cpu="recurrent_weight_gradient",
    gemm=True,
)
ENOUGH_BLOCKS = 128  # blocks that keep a large GPU's cores busy
ROWS = {"metal": (4, 2), "cuda": (8, 4, 2)}  # segments of a block to choose from, and 1
CHUNK = {"metal": 4, "cuda": 8}  # inputs whose weights a thread reads ahead


def full_on_cpu(array: mx.array | None, value: float, shape: tuple[int, ...]) -> mx.array | None:
    """What a fused form is given for None: on a CPU an array of one number, on a GPU None itself.

    A GPU's kernel neither reads nor needs such an array, and to fill one is a launch.
    """
    if array is not None or backend() != "cpu":
        return array
    return mx.full(shape, value, mx.float32)


@float32_on_cpu
def recurrent_weight_gradient(
    dy: mx.array, states: mx.array, first: mx.array | None, keep: mx.array | None
) -> mx.array:
    """Gradient by a weight that multiplies the state before each step.

    Args:
        dy: (T, S, M), gradient by the products.
        states: (T, S, H) float32, after each step.
        first: (S, H) float32, before the first step; None is zeros.
        keep: (T, S) float32, what a state is multiplied by before the step that follows it; None is
            ones.

    Returns:
        (M, H), of dy's dtype.
    """
    fused = WEIGHT_GRADIENT.choose()
    if fused is not None:
        return fused(dy, states, first, keep)
    before = states[:-1]
    if first is not None:
        before = mx.concatenate([first[None], before])
    else:  # zeros: the first step adds nothing
        dy, keep = dy[1:], None if keep is None else keep[1:]
    if keep is not None:  # a view: mx.compile would fuse a broadcast with the product (launch.ones)
        before = before * mx.as_strided(keep, before.shape, (keep.shape[1], 1, 0))
    rows = before.astype(dy.dtype).reshape(-1, states.shape[-1])
    return dy.reshape(-1, dy.shape[-1]).T @ rows


def steps_of(x: mx.array) -> list[mx.array]:
    """The T steps of x (T, ...); ``x[t]`` would cost a full array for each t in the gradient."""
    T = x.shape[0]
    if T == 1:
        return [x.squeeze(0)]
    parts = next((k for k in range(min(10, T), 1, -1) if T % k == 0), None)
    chunk = -(-T // 10)
    pieces = mx.split(x, parts or list(range(chunk, T, chunk)), axis=0)
    return [step for piece in pieces for step in steps_of(piece)]


def factors_of(keep: mx.array | None, T: int) -> list[mx.array | None]:
    """What each of T steps multiplies its state by, (S, 1): keep (T, S), or nothing.

    Slices, as no gradient goes through ``keep``: those of ``steps_of`` make MLX 0.32.4 fail to
    compile two layers that take the same ones ("_Map_base::at").
    """
    return [None if keep is None else keep[t, :, None] for t in range(T)]


# ---- kernels -------------------------------------------------------------------------------------


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
    states = [zeros if array is None else array for array in first]
    steps = int(all(array is not None for array in first)), int(keep is not None)
    return [*states, ones if keep is None else keep], steps


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
    before: Sequence[mx.array],
    first: Sequence[mx.array | None],
    keep: mx.array | None,
    behind: Sequence[mx.array],
    outputs: Sequence[Shape],
    gates: int,
) -> list[mx.array]:
    """Run a kernel that multiplies something of each step with weights of ``gates`` gates.

    Args:
        path: see ``launch``.
        name: see ``launch``.
        before: the first inputs in the text's order.
        first: the next ones, first states (S, H); they and ``keep`` are as for ``first_and_keep``.
        keep: the next one, (T, S).
        behind: the last inputs but for ``sizes``. If there are any, the kernel is a backward one,
            which multiplies a step's gradients (``gates`` H), and the last is the gradient by the
            states (T, S, H). Else it multiplies a step's state (H), and the first output has that
            shape.
        outputs: shapes in the text's order.
        gates: how many rows of the weight belong to a channel.

    Returns:
        The outputs.
    """
    T, S, H = behind[-1].shape if behind else outputs[0]
    R, block = rows_of_block(S, H, gates), min(launch.THREADS, -(-H // 32) * 32)
    chunk = CHUNK[launch.backend()]
    # weights of one input for one channel, inputs, and how many of them are a chunk
    G, D, U = (1, gates * H, 4 * chunk) if behind else (gates, H, chunk)
    shape = {"H": H, "R": R, "C": -(-H // block), "THREADS": block, "N": -(-D // U)}
    states, steps = first_and_keep(first, keep)
    inputs = [*before, *states, *behind, numbers(T, S, *steps)]
    threads = -(-S // R) * block
    return launch.launch(path, name, inputs, outputs, threads, block, **shape, G=G, D=D, U=U)


record(__name__)
