"""MinGRU on a GPU: ``kernels.metal.h``, with the arguments of the CPU extension."""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import launch

TEXT = Path(__file__).with_name("kernels.metal.h")


def mingru_forward(
    u: mx.array, x: mx.array, first: mx.array, keep: mx.array
) -> tuple[mx.array, mx.array]:
    """MinGRU gates, recurrence and highway for T steps.

    Args:
        u: (T, S, 3H), the layer's product ``x @ W.T``: hidden, gate, projection.
        x: (T, S, H), the layer's input.
        first: (S, H) float32, the state before the first step.
        keep: (T, S) float32, what the state is multiplied by before each step: 0 forgets.

    Returns:
        Outputs, of u's dtype, and states, float32: both (T, S, H).
    """
    T, S, H = x.shape
    out, states = launch(
        TEXT,
        "mingru_forward",
        {"u": u, "x": x, "first": first, "keep": keep},
        {"out": x.shape, "states": x.shape},
        threads=S * H,
        T=T,
        S=S,
        H=H,
    )
    return out, states


def mingru_backward(
    u: mx.array,
    x: mx.array,
    first: mx.array,
    keep: mx.array,
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
        (S, H), each of its array's dtype.
    """
    T, S, H = x.shape
    du, dx, dfirst = launch(
        TEXT,
        "mingru_backward",
        {"u": u, "x": x, "first": first, "keep": keep, "states": states, "dout": dout},
        {"du": u.shape, "dx": x.shape, "dfirst": first.shape},
        threads=S * H,
        T=T,
        S=S,
        H=H,
    )
    return du, dx, dfirst
