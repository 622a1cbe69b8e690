"""Encoders: observations to features. Image encoders: ``images.py``."""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from puffer_mlx.ops import gelu, linear
from puffer_mlx.policy.activations import orthogonal, uniform

Weights = dict[str, mx.array]
# Environments for which PufferLib 4.0 chooses an encoder of their own, by their name.
CHOSEN_BY_NAME = {"nmmo3": "two convolutions and an embedding"}


class Encoder(Protocol):
    """From observations (n, D), any dtype, to features (n, H) of the weights' dtype."""

    @property
    def hidden(self) -> int:
        """H."""
        ...

    def init(self, key: mx.array) -> dict:
        """Fresh weights."""
        ...

    def __call__(self, weights: dict, observations: mx.array) -> mx.array:
        """Features of n observations."""
        ...


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
        weight, bias = mx.random.split(key)
        bound = self.inputs**-0.5
        return {
            "weight": uniform(weight, (self.hidden, self.inputs), bound),
            "bias": uniform(bias, (self.hidden,), bound),
        }

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Observations (n, D), any dtype -> features (n, H) of the weights' dtype."""
        return linear(observations, weights["weight"], weights["bias"])


@dataclass(frozen=True)
class AffineGelu:
    """PufferLib 3.0's encoder: a product with bias, then exact GELU."""

    inputs: int  # D
    hidden: int  # H

    def init(self, key: mx.array) -> Weights:
        """Orthogonal weight (H, D), gain 1 as 3.0's LSTM wrapper leaves it, and zero bias (H,)."""
        return {
            "weight": orthogonal(key, (self.hidden, self.inputs)),
            "bias": mx.zeros(self.hidden),
        }

    def __call__(self, weights: Weights, observations: mx.array) -> mx.array:
        """Observations (n, D), any dtype -> features (n, H) of the weights' dtype."""
        return gelu(linear(observations, weights["weight"], weights["bias"]))


def plainer_note(name: str, encoder: object) -> str:
    """A line about an encoder that is plainer than PufferLib's for this environment, or empty.

    Args:
        name: of the environment.
        encoder: of the policy that is trained.
    """
    if name not in CHOSEN_BY_NAME or not isinstance(encoder, Linear | Affine | AffineGelu):
        return ""
    return (
        f"{name}: PufferLib has an encoder of its own for it, {CHOSEN_BY_NAME[name]}; here it gets"
        " a linear one, unless --torch.encoder module:Class names another"
    )
