"""Upstream's default encoder: one linear layer. Bias and activation depend on the dialect.

Tensors: ``weight``, ``bias``.
"""

from dataclasses import dataclass

import mlx.core as mx

from puffer_mlx.ops import dense
from puffer_mlx.ops.gelu import gelu
from puffer_mlx.ops.linear import linear
from puffer_mlx.policy.activations import SB3_GAIN, orthogonal_layer, uniform, uniform_layer
from puffer_mlx.policy.encoders import EncoderFacts
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.plain_functions import record

NAME = "DefaultEncoder"
Weights = dict[str, mx.array]


@dataclass(frozen=True)
class Linear:
    """Upstream's native encoder: a linear layer without bias."""

    inputs: int  # D
    hidden: int  # H

    def init(self, key: mx.array) -> Weights:
        """Return a weight (H, D), uniform within ±sqrt(2 / D)."""
        return {"weight": uniform(key, (self.hidden, self.inputs), (2 / self.inputs) ** 0.5)}

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Compute features (n, H) of observations (n, D): see ``Encoder``."""
        return linear(observations, weights["weight"])


@dataclass(frozen=True)
class Affine:
    """The encoder of upstream's torch backend: a linear layer with bias."""

    inputs: int  # D
    hidden: int  # H

    def init(self, key: mx.array) -> Weights:
        """Return weight (H, D) and bias (H,), uniform within ±1/sqrt(D)."""
        return uniform_layer(key, (self.hidden, self.inputs))

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Compute features (n, H) of observations (n, D): see ``Encoder``."""
        return linear(observations, weights["weight"], weights["bias"])


@dataclass(frozen=True)
class AffineGelu:
    """PufferLib 3.0's encoder: a linear layer with bias, then exact GELU."""

    inputs: int  # D
    hidden: int  # H

    def init(self, key: mx.array) -> Weights:
        """Return an orthogonal weight (H, D) with gain 1, as 3.0's wrapper, and bias (H,) 0."""
        return orthogonal_layer(key, (self.hidden, self.inputs))

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Compute features (n, H) of observations (n, D): see ``Encoder``."""
        return gelu(linear(observations, weights["weight"], weights["bias"]))


@dataclass(frozen=True)
class Activated:
    """The first layer of Stable-Baselines3's policies: a linear layer with bias, an activation.

    Args:
        inputs: number D of observation columns.
        hidden: number H of features.
        activation: an activation of ``ops.dense``.
    """

    inputs: int
    hidden: int
    activation: str

    def init(self, key: mx.array) -> Weights:
        """Return an orthogonal weight (H, D) with gain sqrt(2), and bias (H,) 0."""
        return orthogonal_layer(key, (self.hidden, self.inputs), SB3_GAIN)

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Compute features (n, H) of observations (n, D): see ``Encoder``."""
        return dense(observations, weights["weight"], weights["bias"], self.activation)


LINEAR_ENCODERS = {"native": Linear, "torch": Affine, "puffer3": AffineGelu}


def make(
    spec: EnvSpec, hidden: int, dialect: str, activation: str
) -> Linear | Affine | AffineGelu | Activated:
    """Return the encoder of a dialect for an environment's observations."""
    if dialect == "sb3":
        return Activated(spec.observation_size, hidden, activation)
    return LINEAR_ENCODERS[dialect](spec.observation_size, hidden)


FACTS = {
    Linear: EncoderFacts(NAME, flat=True, activation=lambda encoder: ""),
    Affine: EncoderFacts(NAME, activation=lambda encoder: ""),
    AffineGelu: EncoderFacts(NAME, activation=lambda encoder: "gelu"),
    Activated: EncoderFacts(NAME, activation=lambda encoder: encoder.activation),
}

record(__name__)
