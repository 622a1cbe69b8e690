"""Leaky on a GPU."""

from pathlib import Path

from puffer_mlx.ops.gpu.launch import launch

TEXT = Path(__file__).with_name("kernels.metal.h")


def leaky_forward(u, x, first, keep):
    """States (T, S, H) float32."""
    T, S, H = x.shape
    inputs = {"u": u, "x": x, "first": first, "keep": keep}
    return launch(TEXT, "leaky_forward", inputs, {"states": x.shape}, S * H, T=T, S=S, H=H)[0]


def leaky_backward(u, x, first, keep, states, dout):
    """Gradients by u, by x beside u, and by first."""
    T, S, H = x.shape
    inputs = {"u": u, "x": x, "first": first, "keep": keep, "states": states, "dout": dout}
    outputs = {"du": x.shape, "dx": x.shape, "dfirst": first.shape}
    return tuple(launch(TEXT, "leaky_backward", inputs, outputs, S * H, T=T, S=S, H=H))
