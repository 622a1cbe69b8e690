"""Gather the segments of a minibatch from a rollout's arrays, and write results back."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.gpu.launch import MIN_ARRAY_SIZE, THREADS, constant_array, launch
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.system.backend import backend
from puffer_mlx.system.plain_functions import record

KERNEL_FOLDER = Path(__file__).parent
LANES = 32  # maximum number of adjacent threads that copy one step of one segment
ARRAYS_PER_LAUNCH = 4  # number of source arrays in the kernel's declaration


def _take_in_c(sources, rows, steps):
    """Gather the same segments of several arrays with the C++ extension: see ``take_several``."""
    extension: Any = cpu_extension.load_extension()
    return [extension.take_rows(source, rows, steps) for source in sources]


def launch_take_several(sources, rows, steps):
    """Gather the same segments of several arrays with one launch per four arrays.

    See ``take_several``. Row indices outside [0, N) read row 0 or N - 1.
    """
    if min(array.nbytes for array in sources) < MIN_ARRAY_SIZE:  # too small for a kernel on Metal
        return [mx.take(array[:steps], rows, axis=1) for array in sources]
    S = rows.size
    results = []
    for k in range(0, len(sources), ARRAYS_PER_LAUNCH):
        chunk, sizes, shapes = sources[k : k + ARRAYS_PER_LAUNCH], [], []
        N = chunk[0].shape[1]
        flat = [array.reshape(*array.shape[:2], -1).view(mx.uint8) for array in chunk]
        for array in flat:
            row = array.shape[-1]
            unit = next(unit for unit in (4, 2, 1) if row % unit == 0)
            lanes = min(LANES, 1 << (row // unit - 1).bit_length())
            sizes += [(row // unit, unit, lanes)]
            shapes += [(steps, S, row)]
        missing = ARRAYS_PER_LAUNCH - len(chunk)
        all_lanes = sum(lanes for *_, lanes in sizes)
        array_sizes = (size for each in [*sizes, *[(0, 1, 0)] * missing] for size in each)
        totals = {"T": steps, "S": S, "N": N, "lanes": all_lanes}
        inputs = [*flat, *flat[:1] * missing, rows, totals, constant_array(*array_sizes)]
        path, threads = KERNEL_FOLDER / "take_rows.metal.h", steps * S * all_lanes
        outs = launch(
            path, "take_several", inputs, [*shapes, *[(MIN_ARRAY_SIZE,)] * missing], threads
        )
        for out, array in zip(outs, chunk, strict=False):
            results.append(out.view(array.dtype).reshape(steps, S, *array.shape[2:]))
    return results


@partial(
    Implementation,
    name="the gather of segments in one call",
    cpu=_take_in_c,
    gpu=launch_take_several,
)
def take_several(sources: Sequence[mx.array], rows: mx.array, steps: int) -> list[mx.array]:
    """Gather the same segments from several arrays: ``source[:steps, rows]`` of each.

    Args:
        sources: arrays (T or more, N, ...), any dtype.
        rows: indices of the segments, (S,) int32, each in [0, N).
        steps: number of steps T.

    Returns:
        Arrays (T, S, ...) of the sources' dtypes.
    """
    return [mx.take(source[:steps], rows, axis=1) for source in sources]


def take_rows(source: mx.array, rows: mx.array, steps: int) -> mx.array:
    """Gather segments from one array: ``source[:steps, rows]``. See ``take_several``."""
    return take_several([source], rows, steps)[0]


def split_rows(source: mx.array, size: int, steps: int) -> list[mx.array]:
    """Split an array into groups of adjacent segments, in order.

    Group k is ``source[:steps, k * size : (k + 1) * size]``. On a GPU the results are views of one
    array; this takes one launch, or zero if S is N.

    Args:
        source: (T or more, N, ...), any dtype.
        size: segments per group S, a divisor of N.
        steps: number of steps T.

    Returns:
        N / S arrays (T, S, ...) of the source's dtype.
    """
    _, N, *tail = source.shape
    if size < N and backend() == "cpu" and take_several.choose() is not None:  # MLX copies slices
        starts = range(0, N, size)
        groups = (mx.arange(start, start + size, dtype=mx.int32) for start in starts)
        return [take_rows(source, rows, steps) for rows in groups]
    source = source[:steps]
    if size == N:
        return [source]
    groups = mx.contiguous(source.reshape(steps, N // size, -1).swapaxes(0, 1))
    return [group.reshape(steps, size, *tail) for group in mx.split(groups, N // size)]


def launch_take_targets(logprobs, values, adv, final_observations, rows, weights):
    """Gather a minibatch's targets of the loss in one launch: see ``take_targets``."""
    T, S = len(adv), rows.size
    sizes = {
        "T": T,
        "S": S,
        "N": adv.shape[1],
        "has_final": int(final_observations is not None),
    }
    arrays = [
        logprobs,
        values,
        adv,
        adv if final_observations is None else final_observations,
        rows,
        weights,
        sizes,
    ]
    blocks = -(-T * S // THREADS)
    shapes = [*[(T * S,)] * 4, (3, blocks)]
    path, threads = KERNEL_FOLDER / "take_targets.metal.h", blocks * THREADS
    return launch(path, "take_targets", arrays, shapes, threads)


@partial(Implementation, name="the kernel that gathers targets", gpu=launch_take_targets)
def take_targets(
    logprobs: mx.array,
    values: mx.array,
    adv: mx.array,
    final_observations: mx.array | None,
    rows: mx.array,
    weights: mx.array,
) -> list[mx.array]:
    """Gather the values that a loss compares with, for the steps of a minibatch.

    Args:
        logprobs: log-probabilities (T, N) float32.
        values: (T, N) float32.
        adv: advantages (T, N) float32.
        final_observations: (T or more, N) float32, above 0 at an episode's final observation, where
            the action had no effect. None if there are no such steps.
        rows: the minibatch's segments, (S,) int32, each in [0, N).
        weights: weights of the segments, (S,) float32.

    Returns:
        Log-probabilities, values, advantages and weights of the steps, each (T*S,) float32,
        time-major. Weights are 0 at final observations. The GPU kernel also returns the moments
        (3, G) of the advantages, see ``ppo.closed_form.advantage_moments``.
    """
    T = values.shape[0]
    weight = mx.broadcast_to(weights, (T, rows.shape[0]))
    if final_observations is not None:
        weight = mx.where(take_rows(final_observations, rows, T) > 0, 0, weight)
    arrays = [*take_several([logprobs, values, adv], rows, T), weight]
    return [array.reshape(-1) for array in arrays]


def put_rows(
    values: mx.array,
    ratios: mx.array,
    rows: mx.array,
    new_values: mx.array,
    new_ratios: mx.array,
    ok: mx.array,
) -> list[mx.array]:
    """Write a minibatch's new values and ratios back into the rollout's arrays.

    Nothing is written if the minibatch was skipped.

    Args:
        values: (T, N) float32, old values.
        ratios: (T, N) float32, old probability ratios.
        rows: the minibatch's segments, (S,) int32, each in [0, N). The last duplicate wins.
        new_values: (T, S) float32.
        new_ratios: (T, S) float32.
        ok: scalar, a bool or 0 or 1; false if the minibatch was skipped.

    Returns:
        The updated values and ratios, each (T, N).
    """
    column = mx.broadcast_to(rows[None], new_values.shape)
    changed_values = mx.put_along_axis(values, column, new_values, axis=1)
    changed_ratios = mx.put_along_axis(ratios, column, new_ratios, axis=1)
    return [mx.where(ok, changed_values, values), mx.where(ok, changed_ratios, ratios)]


record(__name__)
