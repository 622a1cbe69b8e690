"""Nature's other forms: see ``encoders/forms.py``. Tensors: ``convs.{i}.*`` and ``linear.*``."""

from functools import partial
from typing import Any

from puffer_mlx.policy.encoders.forms import Forms, TorchForm
from puffer_mlx.policy.encoders.images import (
    channels_first,
    channels_last,
    onnx_convolution,
    onnx_features,
    onnx_pixels,
)
from puffer_mlx.policy.encoders.nature import NAME
from puffer_mlx.policy.encoders.nature.encoder import NATURE, Nature

CHANNELS = NATURE[-1][0]


def _onnx(graph: Any, encoder: Any, x: str) -> str:
    x = onnx_pixels(graph, encoder, x)
    for i, (_, _, stride) in enumerate(NATURE):
        own = onnx_convolution(graph, f"encoder.convs.{i}", x, strides=[stride, stride])
        x = graph("Relu", own)
    return onnx_features(graph, x)


def _torch_key(name: str) -> str:
    """Modules of a sequence: each convolution and its ReLU, flattening, and the product."""
    if name.startswith("linear."):
        return name.replace("linear", "network.7")
    _, i, part = name.split(".")
    return f"network.{2 * int(i)}.{part}"


FORMS = {
    Nature: Forms(
        NAME,
        _onnx,
        torch=TorchForm(
            _torch_key,
            "network.7.weight",
            partial(channels_first, channels=CHANNELS),
            partial(channels_last, channels=CHANNELS),
        ),
        mark="convs.",
    )
}
