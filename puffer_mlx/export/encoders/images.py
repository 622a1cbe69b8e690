"""Shared by the encoders of images: PyTorch's order of channels, and ONNX nodes."""

from collections.abc import Callable
from functools import partial
from typing import Any

from puffer_mlx.export.encoders import Puffer4Encoder


def puffer4_encoder(
    module: Callable[[Any], Any], key: Callable[[str], str], unique_key: str, channels: int
) -> Puffer4Encoder:
    """Describe an image encoder's class in PufferLib 4.0, whose tensors have channels first.

    Args:
        module: (encoder) -> the class's module, with initial weights.
        key: (tensor's name) -> its key, without ``encoder.``.
        unique_key: A key that no other encoder's class has, without ``encoder.``.
        channels: Number of channels after the last convolution.
    """
    to_torch = partial(channels_first, channels=channels)
    from_torch = partial(channels_last, channels=channels)
    return Puffer4Encoder(module, key, unique_key, to_torch, from_torch)


def channels_first(array: Any, channels: int) -> Any:
    """Convert an image encoder's tensor to PyTorch's order of dimensions.

    Args:
        array: Weight of a convolution (O, kh, kw, I), weight of the last linear layer (H, F) with
            columns in the order (pixel, channel), or a bias.
        channels: Number of channels after the last convolution.
    """
    if array.ndim == 4:
        return array.transpose(0, 3, 1, 2)
    if array.ndim == 2:
        pixels = array.reshape(len(array), -1, channels)
        return pixels.transpose(0, 2, 1).reshape(array.shape)
    return array


def channels_last(array: Any, channels: int) -> Any:
    """Convert an image encoder's tensor from PyTorch's order: the inverse of ``channels_first``."""
    if array.ndim == 4:
        return array.transpose(0, 2, 3, 1)
    if array.ndim == 2:
        pixels = array.reshape(len(array), channels, -1)
        return pixels.transpose(0, 2, 1).reshape(array.shape)
    return array


def onnx_pixels(graph: Any, encoder: Any, x: str) -> str:
    """Convert observations (n, D) to images in an ONNX graph. Returns the images' name.

    Values from 0 to 255 are divided by 255. Images have the shape (n, channels, height, width).
    """
    x = graph("Reshape", x, [0, *encoder.shape])
    return graph("Div", graph("Transpose", x, perm=[0, 3, 1, 2]), 255.0)


def onnx_convolution(graph: Any, layer: str, x: str, **attributes: Any) -> str:
    """Add a convolution with bias to an ONNX graph. Returns the name of its output."""
    kernel = graph("Transpose", f"{layer}.weight", perm=[0, 3, 1, 2])
    return graph("Conv", x, kernel, f"{layer}.bias", **attributes)


def onnx_features(graph: Any, x: str) -> str:
    """Add an image encoder's last linear layer and its ReLU to an ONNX graph.

    Returns the name of the output.
    """
    x = graph("Flatten", graph("Transpose", x, perm=[0, 2, 3, 1]))
    return graph("Relu", graph.linear(x, "encoder.linear"))
