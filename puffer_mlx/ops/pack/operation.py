"""Many arrays in one: plain MLX, or one launch."""

from collections.abc import Sequence

import mlx.core as mx

from puffer_mlx.ops.choice import kernel_on_gpu
from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.ops.pack import gpu
from puffer_mlx.ops.pack.gpu import BLOCK, places

REFERENCE = Reference(
    "the kernel that packs arrays",
    ("ops.pack.operation:pack_reference",),
    test="tests/ops/test_pack.py",
    cost="a GPU gets more launches",
)


def pack_reference(arrays: Sequence[mx.array], multiple: int = 1) -> tuple[mx.array, mx.array]:
    """``pack`` in plain MLX."""
    starts, total = places(tuple(array.size for array in arrays), multiple)
    parts = []
    for array, start, end in zip(arrays, starts, [*starts[1:], total], strict=True):
        parts.append(array.reshape(-1).astype(mx.float32))
        parts.append(mx.zeros(end - start - array.size))
    packed = mx.concatenate(parts)
    blocks = mx.pad(packed, (0, -total % BLOCK)).reshape(-1, BLOCK)
    return packed, mx.sum(mx.square(blocks), axis=1)


def pack(arrays: Sequence[mx.array], multiple: int = 1) -> tuple[mx.array, mx.array]:
    """Arrays one after the other in one, each beginning at a multiple of a number.

    Args:
        arrays: at least one, none of them empty.
        multiple: what their places are multiples of; see ``places``. Zeros fill the gaps.

    Returns:
        The numbers (P,) float32, and the sum of the squares of each ``BLOCK`` of them.
    """
    form = kernel_on_gpu(gpu.pack, REFERENCE) or pack_reference
    return form(arrays, multiple)


def sums_of_squares(arrays: Sequence[mx.array]) -> mx.array:
    """Sums of squares that are together those of some arrays, in few launches.

    Args:
        arrays: as for ``pack``.

    Returns:
        (n,) float32, of whatever parts: all finite if all numbers are, and none is beyond 1.8e19,
        the root of what float32 holds.
    """
    if kernel_on_gpu(gpu.pack, REFERENCE) is not None:
        return gpu.pack(arrays)[1]
    return mx.stack([mx.sum(mx.square(array)) for array in arrays])
