"""LSTM on a GPU: ``kernels.metal.h``, with the arguments of the CPU extension."""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.recurrence.gpu import launch_backward, launch_forward

TEXT = Path(__file__).with_name("kernels.metal.h")


def lstm_forward(
    z: mx.array, weight_hh: mx.array, h0: mx.array, c0: mx.array, keep: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """The LSTM recurrence for T steps; gates i, f, g, o.

    Args:
        z: (T, S, 4H), the input's part of the gates, both biases included.
        weight_hh: (4H, H).
        h0: (S, H) float32, the output before the first step.
        c0: (S, H) float32, the cell before the first step.
        keep: (T, S) float32, what h and c are multiplied by before each step: 0 forgets.

    Returns:
        h (T, S, H) and c (T, S, H), float32, and the gates after their activation (T, S, 4H), of
        z's dtype.
    """
    T, S, H = *z.shape[:2], h0.shape[1]
    h, c, gates = launch_forward(
        TEXT,
        "lstm_forward",
        {"z": z, "weight_hh": weight_hh.T, "h0": h0, "c0": c0, "keep": keep},
        {"h": (T, S, H), "c": (T, S, H), "gates": z.shape},
        (T, S, H),
        4,
    )
    return h, c, gates


def lstm_backward(
    gates: mx.array,
    weight_hh: mx.array,
    h0: mx.array,
    c0: mx.array,
    keep: mx.array,
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
        Gradients by z (T, S, 4H), of the gates' dtype, and by h0 and c0 (S, H), float32.
    """
    T, S, H = c.shape
    dz, dh0, dc0 = launch_backward(
        TEXT,
        "lstm_backward",
        {"gates": gates, "weight_hh": weight_hh, "c0": c0, "keep": keep, "c": c, "dh": dh},
        {"dz": gates.shape, "dh0": c0.shape, "dc0": c0.shape},
        (T, S, H),
        4,
    )
    return dz, dh0, dc0
