"""IMPALA's encoder in PyTorch, with the keys of PufferLib 4.0, and in ONNX."""

from typing import Any

from puffer_mlx.export.encoders import EncoderForms
from puffer_mlx.export.encoders.images import (
    onnx_convolution,
    onnx_features,
    onnx_pixels,
    torch_form,
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
    for part in "res0", "res1":
        h = onnx_convolution(graph, f"{block}.{part}.conv0", graph("Relu", x), pads=[1] * 4)
        h = onnx_convolution(graph, f"{block}.{part}.conv1", graph("Relu", h), pads=[1] * 4)
        x = graph("Add", x, h)
    return x


def _torch_key(name: str) -> str:
    """Return the key of a tensor in the sequence of blocks, flattening, ReLU and linear layer."""
    for ours, theirs in (("blocks.", "network."), ("linear.", "network.5."), ("res", "res_block")):
        name = name.replace(ours, theirs)
    return name


def _torch_module(encoder: Any) -> Any:
    from torch import nn

    from puffer_mlx.export.encoders.torch_images import ConvSequence, ImageEncoder, last_columns

    inputs = (encoder.shape[-1], *BLOCK_CHANNELS)
    blocks = [ConvSequence(*pair) for pair in zip(inputs, BLOCK_CHANNELS, strict=False)]
    product = nn.Linear(last_columns(encoder), encoder.hidden)
    network = nn.Sequential(*blocks, nn.Flatten(), nn.ReLU(), product, nn.ReLU())
    return ImageEncoder(encoder.shape, network)


FORMS = {
    Impala: EncoderForms(
        _onnx,
        torch=torch_form(_torch_module, _torch_key, "network.5.weight", BLOCK_CHANNELS[-1]),
        mark="blocks.",
    )
}
