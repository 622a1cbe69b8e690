"""A minibatch's new values and ratios on a GPU: ``put_rows.metal.h``."""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import launch, numbers

TEXT = Path(__file__).with_name("put_rows.metal.h")
COLUMNS, SLICES = 32, 8  # agents of a block, which are 128 where there are 4096; threads of each


def put_rows(
    values: mx.array,
    ratios: mx.array,
    rows: mx.array,
    new_values: mx.array,
    new_ratios: mx.array,
    ok: mx.array,
) -> tuple[mx.array, mx.array]:
    """``ops.put_rows`` in one launch, if ``ok`` is float32; a bool takes another to convert."""
    (T, N), block = values.shape, COLUMNS * SLICES
    sizes = numbers(T, N, rows.size)
    arrays = [values, ratios, rows, new_values, new_ratios, ok.reshape(1), sizes]
    threads, split = -(-N // COLUMNS) * block, {"COLUMNS": COLUMNS, "SLICES": SLICES}
    new = launch(TEXT, "put_rows", arrays, [(T, N)] * 2, threads, block, **split)
    return new[0], new[1]
