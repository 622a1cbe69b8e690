"""IMPALA's encoder in PyTorch, with the keys of PufferLib 4.0, and in ONNX."""

from typing import Any

from puffer_mlx.export.encoders import EncoderExports
from puffer_mlx.export.encoders.images import (
    onnx_convolution,
    onnx_features,
    onnx_pixels,
    puffer4_encoder,
)
from puffer_mlx.policy.encoders.impala import BLOCK_CHANNELS, Impala


def _onnx(graph: Any, encoder: Any, x: str) -> str:
    x = onnx_pixels(graph, encoder, x)
    for i in range(len(BLOCK_CHANNELS)):
        x = _onnx_block(graph, f"encoder.blocks.{i}", x)
    return onnx_features(graph, graph("Relu", x))


def _onnx_block(graph: Any, block: str, x: str) -> str:
    x = onnx_convolution(graph, f"{block}.conv", x, pads=[1] * 4)
    x = graph("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for residual in "res0", "res1":
        h = onnx_convolution(graph, f"{block}.{residual}.conv0", graph("Relu", x), pads=[1] * 4)
        h = onnx_convolution(graph, f"{block}.{residual}.conv1", graph("Relu", h), pads=[1] * 4)
        x = graph("Add", x, h)
    return x


def _torch_key(name: str) -> str:
    """Return the key of an Impala encoder's tensor in PufferLib's sequence of modules."""
    name = name.replace("blocks.", "network.").replace("linear.", "network.5.")
    return name.replace("res", "res_block")


def _torch_module(encoder: Any) -> Any:
    from torch import nn

    from puffer_mlx.export.encoders.torch_images import ConvSequence, ImageEncoder, last_columns

    inputs = (encoder.shape[-1], *BLOCK_CHANNELS)
    blocks = [ConvSequence(*pair) for pair in zip(inputs, BLOCK_CHANNELS, strict=False)]
    linear = nn.Linear(last_columns(encoder), encoder.hidden)
    network = nn.Sequential(*blocks, nn.Flatten(), nn.ReLU(), linear, nn.ReLU())
    return ImageEncoder(encoder.shape, network)


EXPORTS = {
    Impala: EncoderExports(
        _onnx,
        torch=puffer4_encoder(_torch_module, _torch_key, "network.5.weight", BLOCK_CHANNELS[-1]),
        name_prefix="blocks.",
    )
}
