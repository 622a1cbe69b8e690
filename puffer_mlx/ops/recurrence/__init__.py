"""Code shared by recurrent networks: steps in MLX, the recurrent weight's gradient, GPU kernels.

A recurrent weight multiplies the state at every step. ``walk.metal.h`` documents the kernels.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops.gpu import launch
from puffer_mlx.ops.gpu.launch import MIN_ARRAY_SIZE, SHARED_BYTES, Shape, constant_array
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.low_precision import float32_on_cpu
from puffer_mlx.system.backend import backend
from puffer_mlx.system.plain_functions import record

WEIGHT_GRADIENT = Implementation(
    ("ops.recurrence",),
    "the extension's gradient with respect to a recurrent weight",
    cpu="recurrent_weight_gradient",
    gemm=True,
)
MIN_BLOCKS = 128  # number that keeps a large GPU's cores busy
ROWS_PER_BLOCK = {"metal": (4, 2), "cuda": (8, 4, 2)}  # segments of a block, if not 1
WEIGHTS_READ_AHEAD = {"metal": 4, "cuda": 8}  # inputs whose weights a thread loads before use


def default_on_cpu(array: mx.array | None, value: float, shape: tuple[int, ...]) -> mx.array | None:
    """Replace a missing argument (None) by a constant array on a CPU.

    On a GPU None is returned: kernels don't need the array, and filling it would take a launch.
    """
    if array is not None or backend() != "cpu":
        return array
    return mx.full(shape, value, mx.float32)


@float32_on_cpu
def recurrent_weight_gradient(
    dy: mx.array, states: mx.array, first: mx.array | None, not_done: mx.array | None
) -> mx.array:
    """Return a recurrent layer's gradient with respect to its recurrent weight.

    The weight multiplies the previous state at every step.

    Args:
        dy: (T, S, M), gradient with respect to the products.
        states: (T, S, H) float32, state after each step.
        first: (S, H) float32, initial state; None for zeros.
        not_done: (T, S) float32, factor of the previous state at each step; None for 1.

    Returns:
        (M, H), of dy's dtype.
    """
    fused = WEIGHT_GRADIENT.choose()
    if fused is not None:
        return fused(dy, states, first, not_done)
    previous = states[:-1]
    if first is not None:
        previous = mx.concatenate([first[None], previous])
    else:  # zeros: the first step adds nothing
        dy = dy[1:]
        not_done = None if not_done is None else not_done[1:]
    if not_done is not None:
        # A view, because mx.compile would fuse a broadcast with the product: see ``launch.ones``.
        strides = (not_done.shape[1], 1, 0)
        previous = previous * mx.as_strided(not_done, previous.shape, strides)
    rows = previous.astype(dy.dtype).reshape(-1, states.shape[-1])
    return dy.reshape(-1, dy.shape[-1]).T @ rows


def split_steps(x: mx.array) -> list[mx.array]:
    """Split an array (T, ...) into its T steps.

    Splitting is used because the gradient of ``x[t]`` would fill an array (T, ...) for each t. It
    is done recursively into at most ten arrays at a time.
    """
    T = x.shape[0]
    if T == 1:
        return [x.squeeze(0)]
    count = next((k for k in range(min(10, T), 1, -1) if T % k == 0), None)
    size = -(-T // 10)
    chunks = mx.split(x, count or list(range(size, T, size)), axis=0)
    return [step for chunk in chunks for step in split_steps(chunk)]


def split_factors(not_done: mx.array | None, T: int) -> list[mx.array | None]:
    """Split ``not_done`` (T, S) into T arrays (S, 1): the factors of the state before each step.

    If ``not_done`` is None, all T items are None. Slices are fast here because ``not_done`` has no
    gradient. With ``split_steps``, MLX 0.32.4 can't compile two layers that share the steps
    ("_Map_base::at").
    """
    return [None if not_done is None else not_done[t, :, None] for t in range(T)]


# ---- kernels -------------------------------------------------------------------------------------


def kernel_state_inputs(
    first: Sequence[mx.array | None], not_done: mx.array | None
) -> tuple[list[mx.array], dict[str, int]]:
    """Return a recurrent kernel's inputs for initial states and ``not_done``, either may be None.

    Missing states count as zeros and a missing ``not_done`` as ones: the kernel reads the first
    number of an array of ``MIN_ARRAY_SIZE`` numbers with stride 0.

    Args:
        first: initial states (S, H), or None.
        not_done: (T, S), or None.

    Returns:
        The input arrays, ``not_done`` last; and the strides (1 or 0) of the initial states and of
        ``not_done``, by parameter name.
    """
    zeros = constant_array(*[0.0] * MIN_ARRAY_SIZE)
    ones = constant_array(*[1.0] * MIN_ARRAY_SIZE)
    states = [zeros if array is None else array for array in first]
    strides = {"first_step": int(all(array is not None for array in first))}
    strides["not_done_step"] = int(not_done is not None)
    return [*states, ones if not_done is None else not_done], strides


def rows_per_block(S: int, H: int, gates: int) -> int:
    """Choose R, the number of segments that each block of a recurrent kernel processes.

    A larger R reads the weights less often; a smaller R gives more blocks. Shared memory must hold
    R H numbers for each gate.

    Args:
        S: number of segments.
        H: width of the state.
        gates: number of gates.

    Raises:
        UserError: shared memory is too small for one segment.
    """
    chunk = 4 * WEIGHTS_READ_AHEAD[launch.kernel_backend()]
    padded_size = math.ceil(gates * H / chunk) * chunk  # numbers of one segment
    max_rows = SHARED_BYTES // (4 * padded_size)
    if max_rows < 1:
        max_width = SHARED_BYTES // (4 * chunk) * chunk // gates
        raise UserError(
            f"a recurrent layer {H} wide is too large for the GPU's kernel",
            f"policy.hidden_size {max_width} at most, or run on the CPU",
        )
    max_rows = min(max_rows, S // MIN_BLOCKS)
    return next((r for r in ROWS_PER_BLOCK[launch.kernel_backend()] if r <= max_rows), 1)


def launch_recurrence(
    path: Path,
    name: str,
    leading: Sequence[mx.array],
    first: Sequence[mx.array | None],
    not_done: mx.array | None,
    trailing: Sequence[mx.array],
    outputs: Sequence[Shape],
    gates: int,
) -> list[mx.array]:
    """Run a forward or backward kernel of a recurrent layer. Returns its outputs.

    The kernel's inputs are ``leading``, ``first``, ``not_done``, ``trailing`` and its sizes. At
    each step a forward kernel multiplies the weight by the state (H numbers); a backward kernel, by
    the gradient with respect to the gates (``gates`` H numbers).

    Args:
        path: file of the kernel's source.
        name: name of the kernel.
        leading: inputs that precede the initial states.
        first: initial states (S, H), or None.
        not_done: (T, S), or None.
        trailing: for a backward kernel, the inputs after ``not_done``; the last one is the gradient
            with respect to the states (T, S, H). Empty for a forward kernel.
        outputs: shapes of the outputs; a forward kernel's first output is (T, S, H).
        gates: number of gates: the weight has ``gates`` H rows.
    """
    T, S, H = trailing[-1].shape if trailing else outputs[0]
    R = rows_per_block(S, H, gates)
    block = min(launch.THREADS, math.ceil(H / 32) * 32)
    chunk = WEIGHTS_READ_AHEAD[launch.kernel_backend()]
    # D: numbers that are multiplied. G: weights per such number and channel. U: numbers per chunk.
    G, D, U = (1, gates * H, 4 * chunk) if trailing else (gates, H, chunk)
    # C: channels per thread. N: chunks.
    shape = {"H": H, "R": R, "C": math.ceil(H / block), "THREADS": block, "N": math.ceil(D / U)}
    states, strides = kernel_state_inputs(first, not_done)
    inputs = [*leading, *states, *trailing, {"T": T, "S": S, **strides}]
    threads = math.ceil(S / R) * block
    return launch.launch(path, name, inputs, outputs, threads, block, **shape, G=G, D=D, U=U)


record(__name__)
