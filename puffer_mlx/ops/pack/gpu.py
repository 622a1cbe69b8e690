"""Many arrays in one, on a GPU: ``pack.metal.h``, one launch for each 24 of them."""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import THREADS, launch, numbers

TEXT = Path(__file__).with_name("pack.metal.h")
INPUTS = 24  # of a launch; Metal has 31 arrays for a kernel
BLOCK = 1024  # numbers of a block, whose sum of squares is one number


class Places(NamedTuple):
    """Where arrays are among packed ones."""

    starts: tuple[int, ...]
    total: int


@functools.cache
def places(sizes: tuple[int, ...], multiple: int = 1) -> Places:
    """Where arrays of these sizes begin, each at a multiple of a number."""
    starts, at = [], 0
    for size in sizes:
        starts.append(at)
        at += -(-size // multiple) * multiple
    return Places(tuple(starts), at)


def pack(arrays: Sequence[mx.array], multiple: int = 1) -> tuple[mx.array, mx.array]:
    """See ``operation.pack``."""
    arrays = [array.reshape(1) if array.ndim == 0 else array for array in arrays]
    starts, total = places(tuple(array.size for array in arrays), multiple)
    packed, squares, first = arrays[0], arrays[0], 0
    for k in range(0, len(arrays), INPUTS):
        some = arrays[k : k + INPUTS]
        end = starts[k + INPUTS] if k + INPUTS < len(arrays) else total
        missing = INPUTS - len(some)
        sizes = (array.size for array in some)
        pairs = [*zip(starts[k : k + INPUTS], sizes, strict=True), *[(end, 0)] * missing]
        blocks = -(-end // BLOCK)
        at = numbers(end, first, *(number for pair in pairs for number in pair))
        given, shapes = [at, packed, *some, *some[:1] * missing], [(end,), (blocks,)]
        packed, squares = launch(TEXT, "pack", given, shapes, threads=blocks * THREADS)
        first = end
    return packed, squares


def unpack(
    packed: mx.array, shapes: Sequence[tuple[int, ...]], multiple: int = 1
) -> list[mx.array]:
    """Arrays of these shapes out of ``pack``'s numbers: views, which cost nothing."""
    starts, _ = places(tuple(math.prod(shape) for shape in shapes), multiple)
    pairs = zip(shapes, starts, strict=True)
    return [packed[start : start + math.prod(shape)].reshape(shape) for shape, start in pairs]
