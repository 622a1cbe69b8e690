"""A minibatch's new values and ratios in their columns: plain MLX, or one kernel."""

import mlx.core as mx

from puffer_mlx.ops.choice import kernel_on_gpu
from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.ops.put_rows import gpu

REFERENCE = Reference(
    "the kernel that writes values and ratios back",
    ("ops.put_rows.operation:put_rows",),
    test="tests/ppo/test_minibatch_kernels.py",
    cost="a GPU gets more launches",
)


def put_rows(
    values: mx.array,
    ratios: mx.array,
    rows: mx.array,
    new_values: mx.array,
    new_ratios: mx.array,
    ok: mx.array,
) -> tuple[mx.array, mx.array]:
    """Replace the columns of some rows, if their minibatch counted.

    Args:
        values: (T, N) float32, as are ``ratios``.
        ratios: see above.
        rows: (S,) int32, each in [0, N); of those that are there twice, the last counts.
        new_values: (T, S) float32, as are ``new_ratios``.
        new_ratios: see above.
        ok: whether the minibatch counted: a scalar, a bool or a number that is 0 or 1.

    Returns:
        Values and ratios, (T, N).
    """
    kernel = kernel_on_gpu(gpu.put_rows, REFERENCE)
    if kernel is not None:
        return kernel(values, ratios, rows, new_values, new_ratios, ok)
    column = mx.broadcast_to(rows[None], new_values.shape)
    new = (
        mx.put_along_axis(values, column, new_values, axis=1),
        mx.put_along_axis(ratios, column, new_ratios, axis=1),
    )
    return mx.where(ok, new[0], values), mx.where(ok, new[1], ratios)
