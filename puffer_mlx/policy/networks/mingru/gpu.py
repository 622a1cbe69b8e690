"""MinGRU on a GPU: ``kernels.metal.h``, with the arguments of the CPU extension.

The first state may be None, which is zeros, and so may ``keep``, which is ones: nothing is filled.
"""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import launch, numbers
from puffer_mlx.ops.recurrence.gpu import first_and_keep

TEXT = Path(__file__).with_name("kernels.metal.h")


def mingru_forward(
    u: mx.array, x: mx.array, first: mx.array | None, keep: mx.array | None
) -> tuple[mx.array, mx.array]:
    """MinGRU gates, recurrence and highway for T steps.

    Args:
        u: (T, S, 3H), the layer's product ``x @ W.T``: hidden, gate, projection.
        x: (T, S, H), the layer's input.
        first: (S, H) float32, the state before the first step, or None.
        keep: (T, S) float32, what the state is multiplied by before each step: 0 forgets; or None.

    Returns:
        Outputs, of u's dtype, and states, float32: both (T, S, H).
    """
    _, S, H = x.shape
    given, steps = first_and_keep([first], keep)
    arrays = [u, x, *given, numbers(*x.shape, *steps)]
    out, states = launch(TEXT, "mingru_forward", arrays, [x.shape] * 2, S * H)
    return out, states


def mingru_backward(
    u: mx.array,
    x: mx.array,
    first: mx.array | None,
    keep: mx.array | None,
    states: mx.array,
    dout: mx.array,
) -> tuple[mx.array, mx.array, mx.array]:
    """Gradient of ``mingru_forward``'s outputs.

    Args:
        u: as given to the forward pass.
        x: as given to the forward pass.
        first: as given to the forward pass.
        keep: as given to the forward pass.
        states: (T, S, H), as the forward pass returned them.
        dout: (T, S, H), gradient of the loss by the outputs.

    Returns:
        Gradients by ``u`` (T, S, 3H), by ``x`` (T, S, H; the highway's part only) and by ``first``
        (S, H), each of its array's dtype; the last means nothing where ``first`` is None.
    """
    _, S, H = x.shape
    given, steps = first_and_keep([first], keep)
    arrays = [u, x, *given, states, dout, numbers(*x.shape, *steps)]
    shapes = [u.shape, x.shape, (1,) if first is None else (S, H)]
    du, dx, dfirst = launch(TEXT, "mingru_backward", arrays, shapes, S * H)
    return du, dx, dfirst
