"""Forms of encoders with one linear layer, and their conversion between dialects."""

from collections import OrderedDict
from functools import partial
from typing import Any

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.export.encoders import EncoderClass, EncoderForms, refuse_bias
from puffer_mlx.policy.encoders.default import (
    LINEAR_ENCODERS,
    Activated,
    Affine,
    AffineGelu,
    Linear,
    Weights,
)


def _product(graph: Any, encoder: Any, x: str) -> str:
    return graph.product(x, "encoder")


def _product_gelu(graph: Any, encoder: Any, x: str) -> str:
    return graph.gelu(graph.product(x, "encoder"))


def _product_activated(graph: Any, encoder: Any, x: str) -> str:
    return graph.activated(graph.product(x, "encoder"), encoder.activation)


def _to_layout(old: str, encoder: Any, weights: Weights, new: str) -> tuple[Any, Weights]:
    if old == new:
        return encoder, weights
    cls = LINEAR_ENCODERS[new]
    if "puffer3" in (old, new):
        raise UserError(
            f"the encoder {type(encoder).__name__} can't become {cls.__name__}:"
            " only the puffer3 dialect has a GELU behind its product",
            f"keep the dialect {old}",
        )
    result = cls(encoder.inputs, encoder.hidden)
    if "bias" not in weights:
        return result, {"weight": weights["weight"], "bias": mx.zeros(encoder.hidden)}
    refuse_bias("encoder.bias", weights["bias"])
    return result, {"weight": weights["weight"]}


def _torch_module(encoder: Any) -> Any:
    from torch import nn

    product = nn.Linear(encoder.inputs, encoder.hidden)
    return nn.Sequential(OrderedDict(encoder=product))


FORMS = {
    Linear: EncoderForms(
        _product,
        to_layout=partial(_to_layout, "native"),
    ),
    Affine: EncoderForms(
        _product,
        torch=EncoderClass(_torch_module, lambda name: f"encoder.{name}", "encoder.weight"),
        to_layout=partial(_to_layout, "torch"),
    ),
    AffineGelu: EncoderForms(
        _product_gelu,
        puffer3=lambda name: f"policy.encoder.0.{name}",
        to_layout=partial(_to_layout, "puffer3"),
    ),
    Activated: EncoderForms(
        _product_activated,
        sb3=lambda name: f"0.{name}",
    ),
}
