"""Shared by the encoders of images: PyTorch's order of channels, and ONNX nodes."""

from collections.abc import Callable
from functools import partial
from typing import Any

from puffer_mlx.export.encoders import EncoderClass


def torch_form(
    module: Callable[[Any], Any], key: Callable[[str], str], mark: str, channels: int
) -> EncoderClass:
    """Return the form of a class of PufferLib 4.0, whose tensors have channels first.

    Args:
        module: (encoder) -> the class's module, with initial weights.
        key: (tensor's name) -> its key, without ``encoder.``.
        mark: a key that no other encoder's class has, without ``encoder.``.
        channels: number of channels after the last convolution.
    """
    to_torch = partial(channels_first, channels=channels)
    from_torch = partial(channels_last, channels=channels)
    return EncoderClass(module, key, mark, to_torch, from_torch)


def channels_first(array: Any, channels: int) -> Any:
    """Return a tensor in the order of PyTorch.

    Args:
        array: the weight of a convolution (O, kh, kw, I), the weight of the last product (H, F)
            with columns in the order (place, channel), or a bias.
        channels: number of channels after the last convolution.
    """
    if array.ndim == 4:
        return array.transpose(0, 3, 1, 2)
    if array.ndim == 2:
        places = array.reshape(len(array), -1, channels)
        return places.transpose(0, 2, 1).reshape(array.shape)
    return array


def channels_last(array: Any, channels: int) -> Any:
    """Return a tensor of PyTorch in our order: the inverse of ``channels_first``."""
    if array.ndim == 4:
        return array.transpose(0, 2, 3, 1)
    if array.ndim == 2:
        places = array.reshape(len(array), channels, -1)
        return places.transpose(0, 2, 1).reshape(array.shape)
    return array


def onnx_pixels(graph: Any, encoder: Any, x: str) -> str:
    """Add nodes from observations (n, D), 0 to 255, to images (n, channels, height, width)."""
    x = graph("Reshape", x, [0, *encoder.shape])
    return graph("Div", graph("Transpose", x, perm=[0, 3, 1, 2]), 255.0)


def onnx_convolution(graph: Any, layer: str, x: str, **attributes: Any) -> str:
    """Add a convolution with bias."""
    kernel = graph("Transpose", f"{layer}.weight", perm=[0, 3, 1, 2])
    return graph("Conv", x, kernel, f"{layer}.bias", **attributes)


def onnx_features(graph: Any, x: str) -> str:
    """Add the last product and its ReLU."""
    x = graph("Flatten", graph("Transpose", x, perm=[0, 2, 3, 1]))
    return graph("Relu", graph.product(x, "encoder.linear"))
