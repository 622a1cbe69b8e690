"""LSTM on a GPU: ``kernels.metal.h``, with the arguments of the CPU extension.

The first state may be None, which is zeros, and so may ``keep``, which is ones: nothing is filled.
"""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.recurrence.gpu import first_and_keep, launch_recurrence

TEXT = Path(__file__).with_name("kernels.metal.h")


def lstm_forward(
    z: mx.array,
    weight_hh: mx.array,
    h0: mx.array | None,
    c0: mx.array | None,
    keep: mx.array | None,
) -> tuple[mx.array, mx.array, mx.array]:
    """The LSTM recurrence for T steps; gates i, f, g, o.

    Args:
        z: (T, S, 4H), the input's part of the gates, both biases included.
        weight_hh: (4H, H).
        h0: (S, H) float32, the output before the first step, or None.
        c0: (S, H) float32, the cell before the first step; None with h0.
        keep: (T, S) float32, what h and c are multiplied by before each step: 0 forgets;
            or None.

    Returns:
        h (T, S, H) and c (T, S, H), float32, and the gates after their activation (T, S, 4H), of
        z's dtype.
    """
    T, S, H = *z.shape[:2], weight_hh.shape[1]
    given, steps = first_and_keep([h0, c0], keep)
    arrays, shapes = [z, weight_hh.T, *given], [(T, S, H), (T, S, H), z.shape]
    sizes = T, S, H, *steps
    found = launch_recurrence(TEXT, "lstm_forward", arrays, shapes, sizes, 4, backward=False)
    return tuple(found)  # type: ignore


def lstm_backward(
    gates: mx.array,
    weight_hh: mx.array,
    h0: mx.array | None,
    c0: mx.array | None,
    keep: mx.array | None,
    h: mx.array,
    c: mx.array,
    dh: mx.array,
) -> tuple[mx.array, mx.array, mx.array]:
    """Gradient of ``lstm_forward``'s h.

    Args:
        gates: (T, S, 4H), as the forward pass returned them.
        weight_hh: as given to the forward pass.
        h0: not read; what the weight's gradient needs.
        c0: as given to the forward pass.
        keep: as given to the forward pass.
        h: not read; what the weight's gradient needs.
        c: (T, S, H), as the forward pass returned it.
        dh: (T, S, H) float32, gradient of the loss by h.

    Returns:
        Gradients by z (T, S, 4H), of the gates' dtype, and by h0 and c0 (S, H), float32,
        which mean nothing where those are None.
    """
    T, S, H = c.shape
    given, steps = first_and_keep([c0], keep)
    state, sizes = (1,) if c0 is None else (S, H), (T, S, H, *steps)
    arrays, shapes = [gates, weight_hh, *given, c, dh], [gates.shape, state, state]
    found = launch_recurrence(TEXT, "lstm_backward", arrays, shapes, sizes, 4, backward=True)
    return tuple(found)  # type: ignore
