"""Pack many arrays into one array, in plain MLX or with one launch per 24 arrays."""

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

KERNEL_FILE = Path(__file__).with_name("pack.metal.h")
ARRAYS_PER_LAUNCH = 24  # Metal allows a kernel 31 arrays in all
BLOCK = 1024  # numbers per block; `pack_arrays` returns a sum of squares for each block


class PackedOffsets(NamedTuple):
    """Offset of each array in a packed array, and the packed array's size, in numbers."""

    starts: tuple[int, ...]
    total: int


@functools.cache
def packed_offsets(sizes: tuple[int, ...], multiple: int = 1) -> PackedOffsets:
    """Compute where each array starts in a packed array, and the packed array's size.

    Args:
        sizes: sizes of the arrays, in numbers.
        multiple: every offset is a multiple of this.
    """
    starts, offset = [], 0
    for size in sizes:
        starts.append(offset)
        offset += -(-size // multiple) * multiple
    return PackedOffsets(tuple(starts), offset)


def launch_pack(arrays: Sequence[mx.array], multiple: int = 1) -> tuple[mx.array, mx.array]:
    """Concatenate arrays in one packed array by a GPU kernel: see ``pack_arrays``."""
    starts, total = packed_offsets(tuple(array.size for array in arrays), multiple)
    packed = squares = placeholder(mx.float32)
    first = 0
    for k in range(0, len(arrays), ARRAYS_PER_LAUNCH):
        end = starts[k + ARRAYS_PER_LAUNCH] if k + ARRAYS_PER_LAUNCH < len(arrays) else total
        chunk = slice(k, k + ARRAYS_PER_LAUNCH)
        offsets, sources = _fill_inputs(arrays[chunk], starts[chunk], end)
        sizes, blocks = {"total": end, "before": first}, -(-end // BLOCK)
        inputs = [sizes, constant_array(*offsets), packed, *sources]
        shapes = [(end,), (blocks,)]
        packed, squares = launch(KERNEL_FILE, "pack", inputs, shapes, threads=blocks * THREADS)
        first = end
    return packed, squares


def _fill_inputs(
    arrays: Sequence[mx.array], starts: Sequence[int], end: int
) -> tuple[list[int], list[mx.array]]:
    """Fill up the input arrays of a pack kernel, which always has ``ARRAYS_PER_LAUNCH`` of them.

    Returns:
        Offset and size of each array in turn, and the arrays.
    """
    sources = [array.reshape(1) if array.ndim == 0 else array for array in arrays]
    pairs = zip(starts, (array.size for array in sources), strict=True)
    offsets = [number for pair in pairs for number in pair]
    missing = ARRAYS_PER_LAUNCH - len(sources)
    return [*offsets, *[end, 0] * missing], sources + sources[:1] * missing


@functools.partial(Implementation, name="the kernel that packs arrays", gpu=launch_pack)
def pack_arrays(arrays: Sequence[mx.array], multiple: int = 1) -> tuple[mx.array, mx.array]:
    """Concatenate arrays in one packed array.

    Args:
        arrays: one or more non-empty arrays.
        multiple: alignment of the arrays' offsets, in numbers. Gaps are filled with zeros.

    Returns:
        The packed array (P,) float32, and the sum of squares of each block of ``BLOCK`` numbers.
    """
    sizes = [array.size for array in arrays]
    starts, total = packed_offsets(tuple(sizes), multiple)
    pieces = []
    for array, start, end in zip(arrays, starts, [*starts[1:], total], strict=True):
        pieces.append(array.reshape(-1).astype(mx.float32))
        pieces.append(mx.zeros(end - start - array.size))
    packed = mx.concatenate(pieces)
    blocks = mx.pad(packed, (0, -total % BLOCK)).reshape(-1, BLOCK)
    return packed, mx.sum(mx.square(blocks), axis=1)


def unpack_arrays(
    packed: mx.array, shapes: Sequence[tuple[int, ...]], multiple: int = 1
) -> list[mx.array]:
    """Split a packed array into its arrays, which are views without copies.

    Args:
        packed: (P,), as returned by ``pack_arrays``.
        shapes: shapes of the arrays, in order.
        multiple: alignment of the arrays' offsets, in numbers.
    """
    sizes = tuple(math.prod(shape) for shape in shapes)
    starts, _ = packed_offsets(sizes, multiple)
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    cuts = sorted({*starts, *ends} - {0, packed.size})
    pieces = dict(zip([0, *cuts], mx.split(packed, cuts) if cuts else [packed], strict=True))
    return [pieces[start].reshape(shape) for start, shape in zip(starts, shapes, strict=True)]


class PackedTree(dict):
    """A dict tree of float32 arrays that are views of one packed array.

    ``tree_map`` and ``mx.compile`` turn it into plain dicts, without the packed array.

    Args:
        packed: (P,), the arrays in the tree's order, aligned to ``BLOCK`` numbers.
        template: a tree of the same structure and shapes.
        squares: sums of squares as returned by ``pack_arrays``, or None.
    """

    def __init__(self, packed: mx.array, template: Tree, squares: mx.array | None = None) -> None:
        self._views = unpack_arrays(packed, [array.shape for array in leaves(template)], BLOCK)
        views = iter(self._views)
        super().__init__(tree_map(lambda _: next(views), template))
        self._packed = packed
        self.squares = squares

    @property
    def packed(self) -> mx.array | None:
        """The packed array with all arrays of the tree, or None after one of them was replaced."""
        pairs = zip(leaves(self), self._views, strict=True)
        return self._packed if all(array is view for array, view in pairs) else None


def launch_pack_as(dtype: mx.Dtype, arrays: Sequence[mx.array]) -> mx.array:
    """Pack up to 24 float32 arrays into one array of a floating dtype with a GPU kernel.

    Offsets are multiples of ``BLOCK`` numbers. Gaps are filled with zeros.
    """
    starts, total = packed_offsets(tuple(array.size for array in arrays), BLOCK)
    offsets, inputs = _fill_inputs(arrays, starts, total)
    threads = total // BLOCK * THREADS
    arrays = [constant_array(*offsets), *inputs]
    return launch(KERNEL_FILE, "pack_as", arrays, [(total,)], threads, Low=dtype)[0]


def sums_of_squares(arrays: Sequence[mx.array]) -> mx.array:
    """Return partial sums whose total is the sum of squares of all numbers in some arrays.

    Args:
        arrays: one or more non-empty arrays.

    Returns:
        (n,) float32; n depends on the device. All are finite if every number is finite and below
        1.8e19, the square root of float32's maximum.
    """
    if pack_arrays.choose() is not None:
        return pack_arrays(arrays)[1]
    return mx.stack([mx.sum(mx.square(array)) for array in arrays])


record(__name__)
