"""Shared by the encoders of images: the order of channels, and ONNX nodes."""

from typing import Any


def channels_first(array: Any, channels: int) -> Any:
    """A weight as torch has it.

    Args:
        array: a convolution's (O, kh, kw, I), the last product's (H, F) whose columns are (place,
            channel), or a bias.
        channels: of what the last convolution gives.
    """
    if array.ndim == 4:
        return array.transpose(0, 3, 1, 2)
    if array.ndim == 2:
        places = array.reshape(len(array), -1, channels)
        return places.transpose(0, 2, 1).reshape(array.shape)
    return array


def channels_last(array: Any, channels: int) -> Any:
    """The inverse of ``channels_first``."""
    if array.ndim == 4:
        return array.transpose(0, 2, 3, 1)
    if array.ndim == 2:
        places = array.reshape(len(array), channels, -1)
        return places.transpose(0, 2, 1).reshape(array.shape)
    return array


def onnx_pixels(graph: Any, encoder: Any, x: str) -> str:
    """ONNX: observations (n, D), bytes as 0 to 255, to images (n, channels, height, width)."""
    x = graph("Reshape", x, [0, *encoder.shape])
    return graph("Div", graph("Transpose", x, perm=[0, 3, 1, 2]), 255.0)


def onnx_convolution(graph: Any, layer: str, x: str, **attributes: Any) -> str:
    """ONNX: a convolution with bias."""
    kernel = graph("Transpose", f"{layer}.weight", perm=[0, 3, 1, 2])
    return graph("Conv", x, kernel, f"{layer}.bias", **attributes)


def onnx_features(graph: Any, x: str) -> str:
    """ONNX: the last product."""
    x = graph("Flatten", graph("Transpose", x, perm=[0, 2, 3, 1]))
    return graph("Relu", graph.product(x, "encoder.linear"))
