"""Shared code of recurrences: steps in plain MLX, the weight's gradient, the launch of kernels.

A recurrent weight multiplies the state at every step. ``walk.metal.h`` documents the kernels.
"""

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops.gpu import launch
from puffer_mlx.ops.gpu.launch import SHARED_BYTES, Shape, constant_array
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.low_precision import float32_on_cpu
from puffer_mlx.system.backend import backend
from puffer_mlx.system.plain_functions import record

WEIGHT_GRADIENT = Implementation(
    ("ops.recurrence",),
    "the extension's gradient by a recurrent weight",
    cpu="recurrent_weight_gradient",
    gemm=True,
)
ENOUGH_BLOCKS = 128  # blocks that keep a large GPU's cores busy
ROWS = {"metal": (4, 2), "cuda": (8, 4, 2)}  # possible numbers of segments per block, besides 1
CHUNK = {"metal": 4, "cuda": 8}  # inputs whose weights a thread reads ahead


def default_on_cpu(array: mx.array | None, value: float, shape: tuple[int, ...]) -> mx.array | None:
    """Replace None by an array filled with ``value`` on a CPU.

    GPU kernels don't need the array, and filling it would take a launch, so None remains None.
    """
    if array is not None or backend() != "cpu":
        return array
    return mx.full(shape, value, mx.float32)


@float32_on_cpu
def recurrent_weight_gradient(
    dy: mx.array, states: mx.array, first: mx.array | None, not_done: mx.array | None
) -> mx.array:
    """Return the gradient by a weight that multiplies the state before each step.

    Args:
        dy: (T, S, M), gradient by the products.
        states: (T, S, H) float32, states after each step.
        first: (S, H) float32, the state before the first step; None for zeros.
        not_done: (T, S) float32, factors of the state before each step; None for 1.

    Returns:
        (M, H), of dy's dtype.
    """
    fused = WEIGHT_GRADIENT.choose()
    if fused is not None:
        return fused(dy, states, first, not_done)
    before = states[:-1]
    if first is not None:
        before = mx.concatenate([first[None], before])
    else:  # zeros: the first step adds nothing
        dy = dy[1:]
        not_done = None if not_done is None else not_done[1:]
    if not_done is not None:
        # A view, because mx.compile would fuse a broadcast with the product: see ``launch.ones``.
        before = before * mx.as_strided(not_done, before.shape, (not_done.shape[1], 1, 0))
    rows = before.astype(dy.dtype).reshape(-1, states.shape[-1])
    return dy.reshape(-1, dy.shape[-1]).T @ rows


def steps_of(x: mx.array) -> list[mx.array]:
    """Split x (T, ...) into T steps. The gradient of ``x[t]`` would fill an array for each t."""
    T = x.shape[0]
    if T == 1:
        return [x.squeeze(0)]
    parts = next((k for k in range(min(10, T), 1, -1) if T % k == 0), None)
    chunk = -(-T // 10)
    pieces = mx.split(x, parts or list(range(chunk, T, chunk)), axis=0)
    return [step for piece in pieces for step in steps_of(piece)]


def factors_of(not_done: mx.array | None, T: int) -> list[mx.array | None]:
    """Split not_done (T, S) into the factors (S, 1) of each step; None if ``not_done`` is None.

    Slices are fast here because ``not_done`` has no gradient. With ``steps_of`` MLX 0.32.4 fails to
    compile two layers that share the steps ("_Map_base::at").
    """
    return [None if not_done is None else not_done[t, :, None] for t in range(T)]


# ---- kernels -------------------------------------------------------------------------------------


def kernel_state_inputs(
    first: Sequence[mx.array | None], not_done: mx.array | None
) -> tuple[list[mx.array], dict[str, int]]:
    """Return a kernel's inputs for first states and ``not_done``, with None as zeros and ones.

    None becomes a small array, of which the kernel reads the first number with stride 0. It has
    eight numbers because Metal puts smaller arrays into other memory, for which MLX would compile
    another kernel.

    Args:
        first: states (S, H) before the first step, or None.
        not_done: (T, S), or None.

    Returns:
        The inputs, ``not_done`` last, and by name the strides of the first states and of
        ``not_done``: 1 or 0.
    """
    zeros, ones = constant_array(*[0.0] * 8), constant_array(*[1.0] * 8)
    states = [zeros if array is None else array for array in first]
    steps = {"first_step": int(all(array is not None for array in first))}
    steps["not_done_step"] = int(not_done is not None)
    return [*states, ones if not_done is None else not_done], steps


def rows_of_block(S: int, H: int, gates: int) -> int:
    """Return R, the number of segments per block of a recurrent kernel.

    A larger R reads the weights less often; a smaller R gives more blocks. Shared memory must hold
    R H numbers for each gate.

    Raises:
        UserError: shared memory is too small for one segment.
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
    not_done: mx.array | None,
    behind: Sequence[mx.array],
    outputs: Sequence[Shape],
    gates: int,
) -> list[mx.array]:
    """Run a kernel of a recurrence, forward or backward. Returns its outputs.

    The kernel's inputs are ``before``, ``first``, ``not_done``, ``behind`` and its sizes.

    Args:
        path: file of the kernel's source.
        name: name of the kernel.
        before: inputs before the first states.
        first: states (S, H) before the first step, or None.
        not_done: (T, S), or None.
        behind: further inputs of a backward kernel, which multiplies gradients (``gates`` H) by the
            weight; the last one is the gradient by the states (T, S, H). Empty for a forward
            kernel, which multiplies states (H); its first output has the shape (T, S, H).
        outputs: shapes of the outputs.
        gates: number of gates, the weight's rows per channel.
    """
    T, S, H = behind[-1].shape if behind else outputs[0]
    R, block = rows_of_block(S, H, gates), min(launch.THREADS, -(-H // 32) * 32)
    chunk = CHUNK[launch.backend()]
    # weights per input and channel, number of inputs, inputs per chunk
    G, D, U = (1, gates * H, 4 * chunk) if behind else (gates, H, chunk)
    shape = {"H": H, "R": R, "C": -(-H // block), "THREADS": block, "N": -(-D // U)}
    states, steps = kernel_state_inputs(first, not_done)
    inputs = [*before, *states, *behind, {"T": T, "S": S, **steps}]
    threads = -(-S // R) * block
    return launch.launch(path, name, inputs, outputs, threads, block, **shape, G=G, D=D, U=U)


record(__name__)
