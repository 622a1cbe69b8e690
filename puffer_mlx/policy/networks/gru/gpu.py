"""GRU on a GPU: ``kernels.metal.h``, with the arguments of the CPU extension.

The first state may be None, which is zeros, and so may ``keep``, which is ones: nothing is filled.
"""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.recurrence.gpu import first_and_keep, launch_recurrence

TEXT = Path(__file__).with_name("kernels.metal.h")


def gru_forward(
    z: mx.array,
    weight_hh: mx.array,
    bias_hh: mx.array,
    h0: mx.array | None,
    keep: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """The GRU recurrence for T steps; gates r, u, n.

    Args:
        z: (T, S, 3H), the input's part of the gates, ``bias_ih`` included.
        weight_hh: (3H, H).
        bias_hh: (3H,).
        h0: (S, H) float32, the state before the first step, or None.
        keep: (T, S) float32, what h is multiplied by before each step: 0 forgets; or
            None.

    Returns:
        h (T, S, H) float32, and r, u, n and n's part of W h + b, (T, S, 4H), of z's dtype.
    """
    T, S, H = *z.shape[:2], weight_hh.shape[1]
    given, steps = first_and_keep([h0], keep)
    arrays, shapes = [z, weight_hh.T, bias_hh, *given], [(T, S, H), (T, S, 4 * H)]
    sizes = T, S, H, *steps
    h, gates = launch_recurrence(TEXT, "gru_forward", arrays, shapes, sizes, 3, backward=False)
    return h, gates


def gru_backward(
    gates: mx.array,
    weight_hh: mx.array,
    h0: mx.array | None,
    keep: mx.array | None,
    h: mx.array,
    dh: mx.array,
) -> tuple[mx.array, mx.array, mx.array]:
    """Gradient of ``gru_forward``'s h.

    Args:
        gates: (T, S, 4H), as the forward pass returned them.
        weight_hh: as given to the forward pass.
        h0: as given to the forward pass.
        keep: as given to the forward pass.
        h: (T, S, H), as the forward pass returned it.
        dh: (T, S, H) float32, gradient of the loss by h.

    Returns:
        Gradients by z and by W h + b, both (T, S, 3H) and of the gates' dtype, and by h0 (S, H),
        float32, which means nothing where h0 is None.
    """
    T, S, H = h.shape
    given, steps = first_and_keep([h0], keep)
    shapes = [(T, S, 3 * H), (T, S, 3 * H), (1,) if h0 is None else (S, H)]
    arrays, sizes = [gates, weight_hh, *given, h, dh], (T, S, H, *steps)
    found = launch_recurrence(TEXT, "gru_backward", arrays, shapes, sizes, 3, backward=True)
    return tuple(found)  # type: ignore
