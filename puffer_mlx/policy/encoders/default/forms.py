"""The default encoder's other forms: see ``encoders/forms.py``. Tensors: ``weight``, ``bias``."""

from functools import partial
from typing import Any

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.policy.biases import refuse_bias
from puffer_mlx.policy.encoders.default import NAME
from puffer_mlx.policy.encoders.default.encoder import (
    OF_DIALECT,
    Activated,
    Affine,
    AffineGelu,
    Linear,
)
from puffer_mlx.policy.encoders.forms import Forms, TorchForm, Weights


def _product(graph: Any, encoder: Any, x: str) -> str:
    return graph.product(x, "encoder")


def _product_gelu(graph: Any, encoder: Any, x: str) -> str:
    return graph.gelu(graph.product(x, "encoder"))


def _product_activated(graph: Any, encoder: Any, x: str) -> str:
    return graph.activated(graph.product(x, "encoder"), encoder.activation)


def _linear(encoder: Any) -> str:
    return ""


def _to_dialect(own: str, encoder: Any, weights: Weights, dialect: str) -> tuple[Any, Weights]:
    """From the dialect ``own``."""
    if own == dialect:
        return encoder, weights
    wanted = OF_DIALECT[dialect]
    if "puffer3" in (own, dialect):
        raise UserError(
            f"the encoder {type(encoder).__name__} can't become {wanted.__name__}:"
            " only the puffer3 dialect has a GELU behind its product",
            f"keep the dialect {own}",
        )
    made = wanted(encoder.inputs, encoder.hidden)
    if "bias" not in weights:
        return made, {"weight": weights["weight"], "bias": mx.zeros(encoder.hidden)}
    refuse_bias("encoder.bias", weights["bias"])
    return made, {"weight": weights["weight"]}


FORMS = {
    Linear: Forms(
        NAME, _product, flat=True, activation=_linear, to_dialect=partial(_to_dialect, "native")
    ),
    Affine: Forms(
        NAME,
        _product,
        torch=TorchForm(lambda name: f"encoder.{name}", "encoder.weight"),
        activation=_linear,
        to_dialect=partial(_to_dialect, "torch"),
    ),
    AffineGelu: Forms(
        NAME,
        _product_gelu,
        puffer3=lambda name: f"policy.encoder.0.{name}",
        activation=lambda encoder: "gelu",
        to_dialect=partial(_to_dialect, "puffer3"),
    ),
    Activated: Forms(
        NAME,
        _product_activated,
        sb3=lambda name: f"0.{name}",
        activation=lambda encoder: encoder.activation,
    ),
}
