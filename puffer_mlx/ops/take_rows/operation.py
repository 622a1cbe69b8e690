"""Gathers of segments, chosen or all: by MLX, by as many threads as a CPU has, or by a kernel."""

import mlx.core as mx

from puffer_mlx.ops.choice import extension_on_cpu, kernel_on_gpu
from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.ops.take_rows import gpu

REFERENCE = Reference(
    "the gather of segments in one call",
    ("ops.take_rows.operation:take_rows",),
    test="tests/ops/test_ops.py",
    cost="gathers take longer",
)


def take_rows(source: mx.array, rows: mx.array, steps: int) -> mx.array:
    """Gather segments: ``source[:steps, rows]``.

    Args:
        source: (T or more, N, ...), any dtype.
        rows: (S,) int32, each in [0, N).
        steps: T.

    Returns:
        (T, S, ...) of the source's dtype.
    """
    kernel, extension = kernel_on_gpu(gpu.take_rows, REFERENCE), extension_on_cpu(REFERENCE)
    if kernel is not None:
        return kernel(source, rows, steps)
    if extension is None:
        return mx.take(source[:steps], rows, axis=1)
    return extension.take_rows(source, rows, steps)


def split_rows(source: mx.array, size: int, steps: int) -> list[mx.array]:
    """All segments in their order: ``source[:steps, k * size : (k + 1) * size]`` for each k.

    On a GPU they are views of one array, which takes one launch, or none if they are one part.

    Args:
        source: (T or more, N, ...), any dtype.
        size: S, of which N is a multiple.
        steps: T.

    Returns:
        N / S arrays (T, S, ...) of the source's dtype.
    """
    (_, N, *tail), source = source.shape, source[:steps]
    if size == N:
        return [source]
    if extension_on_cpu() is not None:
        starts = range(0, N, size)
        chosen = (mx.arange(start, start + size, dtype=mx.int32) for start in starts)
        return [take_rows(source, rows, steps) for rows in chosen]
    parts = mx.contiguous(source.reshape(steps, N // size, -1).swapaxes(0, 1))
    return [part.reshape(steps, size, *tail) for part in mx.split(parts, N // size)]
