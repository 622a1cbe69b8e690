"""Decoders: compute the parameters of an action distribution, and values, from features.

For discrete actions the outputs are logits (A, n). For continuous actions they are means (a, n) and
log standard deviations (a, 1), which are separate weights (``logstd``). See ``distributions.py``.

Outputs and values are float32 for all types of weights, because losses need the precision.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import linear_columns
from puffer_mlx.policy.activations import orthogonal_layer, uniform, uniform_layer
from puffer_mlx.policy.distributions import (
    UNBOUNDED,
    ActionBounds,
    Categorical,
    Gaussian,
    clamp,
    distribution,
)
from puffer_mlx.spec import ActionSpec
from puffer_mlx.system.plain_functions import record

Weights = dict[str, Any]
Outputs = Any  # mx.array, or a tuple of two arrays


@dataclass(frozen=True)
class Decoder(ABC):
    """Base class of decoders, which map features to action distribution parameters and values.

    Subclasses compute both in one array, which is split afterwards.
    """

    action: ActionSpec
    hidden: int  # H
    limits: ActionBounds = UNBOUNDED  # for continuous actions
    logstd_init: float = 0.0  # for continuous actions

    @property
    def distribution(self) -> Categorical | Gaussian:
        """The action distribution whose parameters the decoder computes."""
        return distribution(self.action, self.limits)

    def logstd(self, weights: Weights) -> mx.array | None:
        """Return clamped log standard deviations (1, a) of continuous actions, else None."""
        if not self.action.continuous:
            return None
        return clamp(weights["logstd"], self.limits.lowest, self.limits.highest)

    def _logstd_weights(self) -> Weights:
        if not self.action.continuous:
            return {}
        return {"logstd": mx.full((1, self.action.heads), self.logstd_init)}

    @abstractmethod
    def init(self, key: mx.array) -> Weights:
        """Return the decoder's initial weights."""

    @abstractmethod
    def product(
        self, weights: Weights, h: mx.array, value_features: mx.array | None = None
    ) -> mx.array:
        """Compute the decoder's matrix product: action outputs and values in one array (A + 1, n).

        It has the weights' dtype.

        Args:
            weights: Weights of the decoder.
            h: Features (n, H).
            value_features: Features (n, H) for the values; None to use ``h``.
        """

    def __call__(self, weights: Weights, h: mx.array) -> tuple[Outputs, mx.array]:
        """Compute action distribution parameters and values (n,) from features (n, H)."""
        return self.split(weights, self.product(weights, h))

    def split(self, weights: Weights, y: mx.array) -> tuple[Outputs, mx.array]:
        """Split a decoder's array (A + 1, n) into distribution parameters and values, float32."""
        y = y.astype(mx.float32)
        logstd = self.logstd(weights)
        if logstd is None:
            return y[:-1], y[-1:].squeeze(0)
        means = clamp(y[:-1], -self.limits.action, self.limits.action)
        return (means, logstd.astype(mx.float32).T), y[-1:].squeeze(0)


@dataclass(frozen=True)
class Fused(Decoder):
    """PufferLib's native decoder: one linear layer without bias, whose last output is the value."""

    def init(self, key: mx.array) -> Weights:
        """Return the decoder's initial weight (A + 1, H), uniform within ±1/sqrt(H)."""
        shape = (self.action.logits + 1, self.hidden)
        return {"weight": uniform(key, shape, self.hidden**-0.5), **self._logstd_weights()}

    def product(
        self, weights: Weights, h: mx.array, value_features: mx.array | None = None
    ) -> mx.array:
        """Compute action outputs and values (A + 1, n) from features (n, H), with one layer.

        See ``Decoder.product``.
        """
        weight = weights["weight"]
        if value_features is None:
            return linear_columns(h, weight)
        A = self.action.logits
        return mx.concatenate(
            [linear_columns(h, weight[:A]), linear_columns(value_features, weight[A:])]
        )


# Gains of the orthogonal initial weights for actions and value, by policy.dialect. None: uniform
# weights. PufferLib 3.0's recurrent wrapper has the gains of puffer3.
GAINS = {"torch": None, "puffer3": (1.0, 1.0), "sb3": (0.01, 1.0)}


@dataclass(frozen=True)
class Separate(Decoder):
    """The decoder of PufferLib's torch classes: a linear layer each for actions and value.

    Initial weights are orthogonal with ``gains``, or uniform within ±1/sqrt(H) without.
    """

    gains: tuple[float, float] | None = None

    def init(self, key: mx.array) -> Weights:
        """Return initial weights and biases of the decoder's two linear layers: actions and value.

        The shapes are (A, H) and (1, H), (A,) and (1,).
        """
        keys = mx.random.split(key)
        gains = self.gains or (None, None)
        actions = self._head(keys[0], self.action.logits, gains[0])
        return {
            **self._logstd_weights(),
            "actions": actions,
            "value": self._head(keys[1], 1, gains[1]),
        }

    def _head(self, key: mx.array, rows: int, gain: float | None) -> dict[str, mx.array]:
        shape = rows, self.hidden
        return uniform_layer(key, shape) if gain is None else orthogonal_layer(key, shape, gain)

    def product(
        self, weights: Weights, h: mx.array, value_features: mx.array | None = None
    ) -> mx.array:
        """Compute action outputs and values (A + 1, n) from features (n, H), with two layers.

        See ``Decoder.product``.
        """
        heads = weights["actions"], weights["value"]
        if value_features is not None:
            pairs = zip((h, value_features), heads, strict=True)
            return mx.concatenate(
                [linear_columns(x, head["weight"], head["bias"]) for x, head in pairs]
            )
        weight = mx.concatenate([head["weight"] for head in heads])
        bias = mx.concatenate([head["bias"] for head in heads])
        return linear_columns(h, weight, bias)


record(__name__)
