"""One product, with bias and an activation or without, as the dialect has it: upstream's default.

Tensors: ``weight``, ``bias``.
"""

from dataclasses import dataclass

import mlx.core as mx

from puffer_mlx.ops import dense
from puffer_mlx.ops.gelu import gelu
from puffer_mlx.ops.linear import linear
from puffer_mlx.policy.activations import GAIN, orthogonal_layer, uniform, uniform_layer
from puffer_mlx.policy.encoders import Forms
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
        inputs: number D of observation columns.
        hidden: number H of features.
        activation: an activation of ``ops.dense``.
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


FORMS = {
    Linear: Forms(NAME, flat=True, activation=lambda encoder: ""),
    Affine: Forms(NAME, activation=lambda encoder: ""),
    AffineGelu: Forms(NAME, activation=lambda encoder: "gelu"),
    Activated: Forms(NAME, activation=lambda encoder: encoder.activation),
}

record(__name__)
