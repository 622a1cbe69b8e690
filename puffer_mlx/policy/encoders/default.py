"""The default encoder: one linear layer. Its bias and activation depend on ``policy.dialect``.

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
    """PufferLib's native encoder: a linear layer without bias."""

    inputs: int  # D
    hidden: int  # H

    def init(self, key: mx.array) -> Weights:
        """Return the initial weight (H, D) of the linear encoder, uniform within ±sqrt(2 / D)."""
        return {"weight": uniform(key, (self.hidden, self.inputs), (2 / self.inputs) ** 0.5)}

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Encode observations (n, D) as features (n, H) by a linear layer without bias."""
        return linear(observations, weights["weight"])


@dataclass(frozen=True)
class Affine:
    """The encoder of PufferLib's torch backend: a linear layer with bias."""

    inputs: int  # D
    hidden: int  # H

    def init(self, key: mx.array) -> Weights:
        """Return a linear encoder's initial weight (H, D) and bias, uniform within ±1/sqrt(D)."""
        return uniform_layer(key, (self.hidden, self.inputs))

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Encode observations (n, D) as features (n, H) by a linear layer with bias."""
        return linear(observations, weights["weight"], weights["bias"])


@dataclass(frozen=True)
class AffineGelu:
    """PufferLib 3.0's encoder: a linear layer with bias, then exact GELU."""

    inputs: int  # D
    hidden: int  # H

    def init(self, key: mx.array) -> Weights:
        """Return a linear encoder's initial weights: an orthogonal (H, D) matrix, and bias 0."""
        return orthogonal_layer(key, (self.hidden, self.inputs))

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Encode observations (n, D) as features (n, H) by a linear layer with bias and GELU."""
        return gelu(linear(observations, weights["weight"], weights["bias"]))


@dataclass(frozen=True)
class Activated:
    """Stable-Baselines3's encoder: the first linear layer of its policies, and an activation.

    Args:
        inputs: Observation size D.
        hidden: Number H of features.
        activation: Name of an activation of ``ops.dense``.
    """

    inputs: int
    hidden: int
    activation: str

    def init(self, key: mx.array) -> Weights:
        """Return a linear encoder's initial weights: orthogonal (H, D), gain sqrt(2); bias 0."""
        return orthogonal_layer(key, (self.hidden, self.inputs), SB3_GAIN)

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Encode observations (n, D) as features (n, H) by a linear layer and an activation."""
        return dense(observations, weights["weight"], weights["bias"], self.activation)


LINEAR_ENCODERS = {"native": Linear, "torch": Affine, "puffer3": AffineGelu}  # by policy.dialect


def make(
    spec: EnvSpec, hidden: int, weight_layout: str, activation: str
) -> Linear | Affine | AffineGelu | Activated:
    """Create the linear encoder of a ``policy.dialect`` for an environment's observations."""
    if weight_layout == "sb3":
        return Activated(spec.observation_size, hidden, activation)
    return LINEAR_ENCODERS[weight_layout](spec.observation_size, hidden)


FACTS = {
    Linear: EncoderFacts(NAME, flat=True, activation=lambda encoder: ""),
    Affine: EncoderFacts(NAME, activation=lambda encoder: ""),
    AffineGelu: EncoderFacts(NAME, activation=lambda encoder: "gelu"),
    Activated: EncoderFacts(NAME, activation=lambda encoder: encoder.activation),
}

record(__name__)
