"""The Nature encoder in PyTorch, with the keys of PufferLib 4.0, and in ONNX."""

from typing import Any

from puffer_mlx.export.encoders import EncoderExports
from puffer_mlx.export.encoders.images import (
    onnx_convolution,
    onnx_features,
    onnx_pixels,
    puffer4_encoder,
)
from puffer_mlx.policy.encoders.nature import CONVOLUTIONS, Nature


def _onnx(graph: Any, encoder: Any, x: str) -> str:
    x = onnx_pixels(graph, encoder, x)
    for i, (_, _, stride) in enumerate(CONVOLUTIONS):
        x = graph(
            "Relu", onnx_convolution(graph, f"encoder.convs.{i}", x, strides=[stride, stride])
        )
    return onnx_features(graph, x)


def _torch_key(name: str) -> str:
    """Return the key of a Nature encoder's tensor in PufferLib's sequence of modules."""
    if name.startswith("linear."):
        return name.replace("linear", "network.7")
    _, i, tensor = name.split(".")
    return f"network.{2 * int(i)}.{tensor}"


def _torch_module(encoder: Any) -> Any:
    from torch import nn

    from puffer_mlx.export.encoders.torch_images import ImageEncoder, last_columns

    layers = []
    channels = encoder.shape[-1]
    for width, size, stride in CONVOLUTIONS:
        layers += [nn.Conv2d(channels, width, size, stride), nn.ReLU()]
        channels = width
    last = [nn.Flatten(), nn.Linear(last_columns(encoder), encoder.hidden), nn.ReLU()]
    return ImageEncoder(encoder.shape, nn.Sequential(*layers, *last))


EXPORTS = {
    Nature: EncoderExports(
        _onnx,
        torch=puffer4_encoder(_torch_module, _torch_key, "network.7.weight", CONVOLUTIONS[-1][0]),
        name_prefix="convs.",
    )
}
