"""One product, with bias and an activation or without, as the dialect has it: upstream's default.

Tensors: ``weight``, ``bias``.
"""

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops import dense
from puffer_mlx.ops.gelu import gelu
from puffer_mlx.ops.linear import linear
from puffer_mlx.policy.activations import GAIN, orthogonal_layer, uniform, uniform_layer
from puffer_mlx.policy.decoders import refuse_bias
from puffer_mlx.policy.encoders import Forms, TorchForm
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.plain_functions import record

NAME = "DefaultEncoder"
Weights = dict[str, mx.array]


@dataclass(frozen=True)
class Linear:
    """Upstream's native encoder: one product, no bias, activation or scaling."""

    inputs: int  # D
    hidden: int  # H

    def init(self, key: mx.array) -> Weights:
        """Weight (H, D), uniform within ±sqrt(2 / D)."""
        return {"weight": uniform(key, (self.hidden, self.inputs), (2 / self.inputs) ** 0.5)}

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Observations (n, D), any dtype -> features (n, H) of the weights' dtype."""
        return linear(observations, weights["weight"])


@dataclass(frozen=True)
class Affine:
    """The encoder of upstream's torch backend: a product with bias."""

    inputs: int  # D
    hidden: int  # H

    def init(self, key: mx.array) -> Weights:
        """Weight (H, D) and bias (H,), uniform within ±1/sqrt(D)."""
        return uniform_layer(key, (self.hidden, self.inputs))

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Observations (n, D), any dtype -> features (n, H) of the weights' dtype."""
        return linear(observations, weights["weight"], weights["bias"])


@dataclass(frozen=True)
class AffineGelu:
    """PufferLib 3.0's encoder: a product with bias, then exact GELU."""

    inputs: int  # D
    hidden: int  # H

    def init(self, key: mx.array) -> Weights:
        """Orthogonal weight (H, D), gain 1 as 3.0's wrapper leaves it, and zero bias (H,)."""
        return orthogonal_layer(key, (self.hidden, self.inputs))

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Observations (n, D), any dtype -> features (n, H) of the weights' dtype."""
        return gelu(linear(observations, weights["weight"], weights["bias"]))


@dataclass(frozen=True)
class Activated:
    """The first hidden layer of Stable-Baselines3's policies: a product with bias, an activation.

    Args:
        inputs: D.
        hidden: H.
        activation: as of ``ops.dense``.
    """

    inputs: int
    hidden: int
    activation: str

    def init(self, key: mx.array) -> Weights:
        """Orthogonal weight (H, D), gain sqrt(2), and zero bias (H,)."""
        return orthogonal_layer(key, (self.hidden, self.inputs), GAIN)

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Observations (n, D), any dtype -> features (n, H) of the weights' dtype."""
        return dense(observations, weights["weight"], weights["bias"], self.activation)


OF_DIALECT = {"native": Linear, "torch": Affine, "puffer3": AffineGelu}  # sb3's has an activation


def make(
    spec: EnvSpec, hidden: int, dialect: str, activation: str
) -> Linear | Affine | AffineGelu | Activated:
    """The encoder of a dialect, for an environment's observations."""
    if dialect == "sb3":
        return Activated(spec.observation_size, hidden, activation)
    return OF_DIALECT[dialect](spec.observation_size, hidden)


# ---- other forms: see ``encoders/__init__.py`` ---------------------------------------------------


def _product(graph: Any, encoder: Any, x: str) -> str:
    return graph.product(x, "encoder")


def _product_gelu(graph: Any, encoder: Any, x: str) -> str:
    return graph.gelu(graph.product(x, "encoder"))


def _product_activated(graph: Any, encoder: Any, x: str) -> str:
    return graph.activated(graph.product(x, "encoder"), encoder.activation)


def _to_dialect(old: str, encoder: Any, weights: Weights, new: str) -> tuple[Any, Weights]:
    if old == new:
        return encoder, weights
    cls = OF_DIALECT[new]
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
    Linear: Forms(
        NAME,
        _product,
        flat=True,
        activation=lambda encoder: "",
        to_dialect=partial(_to_dialect, "native"),
    ),
    Affine: Forms(
        NAME,
        _product,
        torch=TorchForm(_torch_module, lambda name: f"encoder.{name}", "encoder.weight"),
        activation=lambda encoder: "",
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

record(__name__)
