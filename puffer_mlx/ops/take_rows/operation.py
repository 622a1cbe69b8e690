"""A gather of segments: by MLX, by as many threads as a CPU has, or by a kernel."""

import mlx.core as mx

from puffer_mlx.ops.choice import extension_on_cpu, kernel_on_gpu
from puffer_mlx.ops.take_rows import gpu


def take_rows(source: mx.array, rows: mx.array, steps: int) -> mx.array:
    """Gather segments: ``source[:steps, rows]``.

    Args:
        source: (T or more, N, ...), any dtype.
        rows: (S,) int32, each in [0, N).
        steps: T.

    Returns:
        (T, S, ...) of the source's dtype.
    """
    kernel, extension = kernel_on_gpu(gpu.take_rows), extension_on_cpu()
    if kernel is not None:
        return kernel(source, rows, steps)
    if extension is None:
        return mx.take(source[:steps], rows, axis=1)
    return extension.take_rows(source, rows, steps)
