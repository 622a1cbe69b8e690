"""A gather of segments on a GPU: ``take_rows.metal.h``, with the arguments of the CPU extension."""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import launch, numbers

TEXT = Path(__file__).with_name("take_rows.metal.h")
LANES = 32  # neighbouring threads that copy one step of one segment, at most


def take_rows(source: mx.array, rows: mx.array, steps: int) -> mx.array:
    """``ops.take_rows`` in one launch: (T or more, N, ...) of any dtype, (S,) -> (T, S, ...).

    A row outside [0, N) reads row 0 or N - 1.
    """
    (_, N, *tail), S = source.shape, rows.size
    flat = source.reshape(*source.shape[:2], -1)
    words = flat.shape[-1] * source.itemsize % 4 == 0
    flat = flat.view(mx.float32 if words else mx.uint8)
    D = flat.shape[-1]
    lanes = min(LANES, 1 << (D - 1).bit_length())
    arrays, name = (
        [flat, rows, numbers(steps, S, N, D, lanes)],
        "take_words" if words else "take_bytes",
    )
    (out,) = launch(TEXT, name, arrays, [(steps, S, D)], steps * S * lanes)
    return out.view(source.dtype).reshape(steps, S, *tail)
