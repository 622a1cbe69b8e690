"""Pack many arrays in one, by plain MLX or with one launch per 24 arrays."""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.ops.gpu.launch import THREADS, constant_array, launch, placeholder
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.system.plain_functions import record
from puffer_mlx.trees import Tree, leaves

TEXT = Path(__file__).with_name("pack.metal.h")
INPUTS = 24  # per launch; Metal allows 31 arrays per kernel
BLOCK = 1024  # numbers per block; each block has one sum of squares


class Places(NamedTuple):
    """Offsets of arrays in a packed array, and its size."""

    starts: tuple[int, ...]
    total: int


@functools.cache
def places(sizes: tuple[int, ...], multiple: int = 1) -> Places:
    """Return the offsets of arrays with these sizes, all multiples of ``multiple``."""
    starts, at = [], 0
    for size in sizes:
        starts.append(at)
        at += -(-size // multiple) * multiple
    return Places(tuple(starts), at)


def launch_pack(arrays: Sequence[mx.array], multiple: int = 1) -> tuple[mx.array, mx.array]:
    """Compute ``pack`` by a GPU kernel."""
    starts, total = places(tuple(array.size for array in arrays), multiple)
    packed = squares = placeholder(mx.float32)
    first = 0
    for k in range(0, len(arrays), INPUTS):
        end = starts[k + INPUTS] if k + INPUTS < len(arrays) else total
        at, some = _filled(arrays[k : k + INPUTS], starts[k : k + INPUTS], end)
        sizes, blocks = {"total": end, "before": first}, -(-end // BLOCK)
        inputs = [sizes, constant_array(*at), packed, *some]
        shapes = [(end,), (blocks,)]
        packed, squares = launch(TEXT, "pack", inputs, shapes, threads=blocks * THREADS)
        first = end
    return packed, squares


def _filled(
    arrays: Sequence[mx.array], starts: Sequence[int], end: int
) -> tuple[list[int], list[mx.array]]:
    """Fill a launch's inputs up to ``INPUTS``. Returns offsets with sizes, and the arrays."""
    some = [array.reshape(1) if array.ndim == 0 else array for array in arrays]
    at = [number for pair in zip(starts, (a.size for a in some), strict=True) for number in pair]
    missing = INPUTS - len(some)
    return [*at, *[end, 0] * missing], some + some[:1] * missing


@functools.partial(Implementation, name="the kernel that packs arrays", gpu=launch_pack)
def pack(arrays: Sequence[mx.array], multiple: int = 1) -> tuple[mx.array, mx.array]:
    """Concatenate arrays in one packed array.

    Args:
        arrays: one or more non-empty arrays.
        multiple: alignment of the arrays' offsets, in numbers. Gaps are filled with zeros.

    Returns:
        The packed array (P,) float32, and the sums of squares of its blocks of ``BLOCK`` numbers.
    """
    sizes = [array.size for array in arrays]
    starts, total = places(tuple(sizes), multiple)
    parts = []
    for array, start, end in zip(arrays, starts, [*starts[1:], total], strict=True):
        parts.append(array.reshape(-1).astype(mx.float32))
        parts.append(mx.zeros(end - start - array.size))
    packed = mx.concatenate(parts)
    blocks = mx.pad(packed, (0, -total % BLOCK)).reshape(-1, BLOCK)
    return packed, mx.sum(mx.square(blocks), axis=1)


def unpack(
    packed: mx.array, shapes: Sequence[tuple[int, ...]], multiple: int = 1
) -> list[mx.array]:
    """Split a packed array into arrays of these shapes. They are views, without copies."""
    sizes = tuple(math.prod(shape) for shape in shapes)
    starts, _ = places(sizes, multiple)
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    cuts = sorted({*starts, *ends} - {0, packed.size})
    parts = dict(zip([0, *cuts], mx.split(packed, cuts) if cuts else [packed], strict=True))
    return [parts[start].reshape(shape) for start, shape in zip(starts, shapes, strict=True)]


class PackedTree(dict):
    """A tree of float32 arrays that are views of one packed array.

    Other code sees a dict. ``tree_map`` and ``mx.compile`` return plain dicts, without the packed
    array.

    Args:
        packed: (P,), the arrays in the tree's order, aligned to ``BLOCK`` numbers.
        like: a tree of the same structure and shapes.
        squares: the sums of squares returned by ``pack``; None if not computed.
    """

    def __init__(self, packed: mx.array, like: Tree, squares: mx.array | None = None) -> None:
        self._views = unpack(packed, [array.shape for array in leaves(like)], BLOCK)
        views = iter(self._views)
        super().__init__(tree_map(lambda _: next(views), like))
        self._packed = packed
        self.squares = squares

    @property
    def packed(self) -> mx.array | None:
        """The packed array, or None after an array of the tree was replaced."""
        pairs = zip(leaves(self), self._views, strict=True)
        return self._packed if all(array is view for array, view in pairs) else None


def launch_pack_as(dtype: mx.Dtype, arrays: Sequence[mx.array]) -> mx.array:
    """Pack up to 24 float32 arrays in one array of a floating dtype by a GPU kernel.

    Offsets are multiples of ``BLOCK`` numbers. Gaps are filled with zeros.
    """
    starts, total = places(tuple(array.size for array in arrays), BLOCK)
    at, inputs = _filled(arrays, starts, total)
    threads = total // BLOCK * THREADS
    arrays = [constant_array(*at), *inputs]
    return launch(TEXT, "pack_as", arrays, [(total,)], threads, Low=dtype)[0]


def sums_of_squares(arrays: Sequence[mx.array]) -> mx.array:
    """Return partial sums of squares, which add up to the arrays' sum of squares.

    Args:
        arrays: one or more non-empty arrays.

    Returns:
        (n,) float32; n depends on the device. All are finite if all numbers are finite and below
        1.8e19, the square root of float32's maximum.
    """
    if pack.choose() is not None:
        return pack(arrays)[1]
    return mx.stack([mx.sum(mx.square(array)) for array in arrays])


record(__name__)
