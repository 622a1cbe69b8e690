"""Encoders with one linear layer in other programs, and their conversion between weight layouts."""

from collections import OrderedDict
from functools import partial
from typing import Any

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.export.encoders import EncoderExports, Puffer4Encoder, refuse_bias
from puffer_mlx.policy.encoders.default import (
    LINEAR_ENCODERS,
    Activated,
    Affine,
    AffineGelu,
    Linear,
    Weights,
)


def _product(graph: Any, encoder: Any, x: str) -> str:
    return graph.linear(x, "encoder")


def _product_gelu(graph: Any, encoder: Any, x: str) -> str:
    return graph.gelu(graph.linear(x, "encoder"))


def _product_activated(graph: Any, encoder: Any, x: str) -> str:
    return graph.activation(graph.linear(x, "encoder"), encoder.activation)


def _to_layout(old: str, encoder: Any, weights: Weights, new: str) -> tuple[Any, Weights]:
    """Convert a policy's default encoder and its weights to another weight layout.

    The default encoder is one linear layer.
    """
    if old == new:
        return encoder, weights
    cls = LINEAR_ENCODERS[new]
    if "puffer3" in (old, new):
        raise UserError(
            f"the encoder {type(encoder).__name__} can't be converted to {cls.__name__}:"
            " only the weight layout puffer3 has a GELU after the linear layer",
            f"keep the layout {old}",
        )
    result = cls(encoder.inputs, encoder.hidden)
    if "bias" not in weights:
        return result, {"weight": weights["weight"], "bias": mx.zeros(encoder.hidden)}
    refuse_bias("encoder.bias", weights["bias"])
    return result, {"weight": weights["weight"]}


def _torch_module(encoder: Any) -> Any:
    from torch import nn

    linear = nn.Linear(encoder.inputs, encoder.hidden)
    return nn.Sequential(OrderedDict(encoder=linear))


EXPORTS = {
    Linear: EncoderExports(
        _product,
        to_layout=partial(_to_layout, "native"),
    ),
    Affine: EncoderExports(
        _product,
        torch=Puffer4Encoder(_torch_module, lambda name: f"encoder.{name}", "encoder.weight"),
        to_layout=partial(_to_layout, "torch"),
    ),
    AffineGelu: EncoderExports(
        _product_gelu,
        puffer3=lambda name: f"policy.encoder.0.{name}",
        to_layout=partial(_to_layout, "puffer3"),
    ),
    Activated: EncoderExports(
        _product_activated,
        sb3=lambda name: f"0.{name}",
    ),
}
