"""Steps of a recurrence in plain MLX, and the gradient by a weight that multiplies its state."""

import mlx.core as mx

from puffer_mlx.ops.choice import extension_on_cpu, extension_with_products
from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.ops.low_precision import float32_on_cpu
from puffer_mlx.system.backend import backend

REFERENCE = Reference(
    "the extension's gradient by a recurrent weight",
    ("ops.recurrence.operation:recurrent_weight_gradient",),
    test="tests/ops/test_ops.py",
    cost="gated networks take longer on a CPU",
)


def full_on_cpu(array: mx.array | None, value: float, shape: tuple[int, ...]) -> mx.array | None:
    """What a fused form is given for None: on a CPU an array of one number, on a GPU None itself.

    A GPU's kernel neither reads nor needs such an array, and to fill one is a launch.
    """
    if array is not None or backend() != "cpu":
        return array
    return mx.full(shape, value, mx.float32)


@float32_on_cpu
def recurrent_weight_gradient(
    dy: mx.array, states: mx.array, first: mx.array | None, keep: mx.array | None
) -> mx.array:
    """Gradient by a weight that multiplies the state before each step.

    Args:
        dy: (T, S, M), gradient by the products.
        states: (T, S, H) float32, after each step.
        first: (S, H) float32, before the first step; None is zeros.
        keep: (T, S) float32, what a state is multiplied by before the step that follows it; None is
            ones.

    Returns:
        (M, H), of dy's dtype.
    """
    if extension_with_products(REFERENCE) is not None:
        return extension_on_cpu().recurrent_weight_gradient(dy, states, first, keep)
    before = states[:-1]
    if first is not None:
        before = mx.concatenate([first[None], before])
    else:  # zeros: the first step adds nothing
        dy, keep = dy[1:], None if keep is None else keep[1:]
    before = before if keep is None else before * keep[..., None]
    rows = before.astype(dy.dtype).reshape(-1, states.shape[-1])
    return dy.reshape(-1, dy.shape[-1]).T @ rows


def steps_of(x: mx.array) -> list[mx.array]:
    """The T steps of x (T, ...); ``x[t]`` would cost a full array for each t in the gradient."""
    T = x.shape[0]
    if T == 1:
        return [x.squeeze(0)]
    parts = next((k for k in range(min(10, T), 1, -1) if T % k == 0), None)
    chunk = -(-T // 10)
    pieces = mx.split(x, parts or list(range(chunk, T, chunk)), axis=0)
    return [step for piece in pieces for step in steps_of(piece)]


def factors_of(keep: mx.array | None, T: int) -> list[mx.array | None]:
    """What each of T steps multiplies its state by, (S, 1): keep (T, S), or nothing.

    Slices, as no gradient goes through ``keep``: those of ``steps_of`` make MLX 0.32.4 fail to
    compile two layers that take the same ones ("_Map_base::at").
    """
    return [None if keep is None else keep[t, :, None] for t in range(T)]
