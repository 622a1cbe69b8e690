"""A gather of segments: by MLX, or by as many threads as there are."""

import mlx.core as mx

from puffer_mlx.ops.choice import extension_on_cpu


def take_rows(source: mx.array, rows: mx.array, steps: int) -> mx.array:
    """Gather segments: ``source[:steps, rows]``.

    Args:
        source: (T or more, N, ...), any dtype.
        rows: (S,) int32, each in [0, N).
        steps: T.

    Returns:
        (T, S, ...) of the source's dtype.
    """
    extension = extension_on_cpu()
    if extension is None:
        return mx.take(source[:steps], rows, axis=1)
    return extension.take_rows(source, rows, steps)
