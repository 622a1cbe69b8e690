"""A gather of targets: one of each array, or all of them by one kernel."""

import mlx.core as mx

from puffer_mlx.ops.choice import kernel_on_gpu
from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.ops.take_rows.operation import take_rows
from puffer_mlx.ops.take_targets import gpu

REFERENCE = Reference(
    "the kernel that gathers targets",
    ("ops.take_targets.operation:take_targets",),
    test="tests/ppo/test_minibatch_kernels.py",
    cost="a GPU gets more launches",
)


def take_targets(
    logprobs: mx.array,
    values: mx.array,
    adv: mx.array,
    finals: mx.array | None,
    rows: mx.array,
    weights: mx.array,
) -> tuple[mx.array, ...]:
    """Gather what a minibatch's steps are compared with.

    Args:
        logprobs: (T, N) float32, as are ``values`` and ``adv``.
        values: see above.
        adv: see above.
        finals: (T or more, N) float32, above 0 where an observation is an episode's last, so that
            the action chosen from it had no effect; None: nowhere.
        rows: (S,) int32, each in [0, N).
        weights: (S,) float32, of the rows.

    Returns:
        The rows' log-probabilities, values and advantages, and their steps' weights, which are 0 at
        last observations: each (T*S,) float32, time-major.
    """
    kernel = kernel_on_gpu(gpu.take_targets, REFERENCE)
    if kernel is not None:
        return kernel(logprobs, values, adv, finals, rows, weights)
    T = values.shape[0]
    weight = mx.broadcast_to(weights, (T, rows.shape[0]))
    if finals is not None:
        weight = mx.where(take_rows(finals, rows, T) > 0, 0, weight)
    taken = (take_rows(array, rows, T) for array in (logprobs, values, adv))
    return tuple(array.reshape(-1) for array in (*taken, weight))
