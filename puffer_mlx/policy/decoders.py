"""Decoders: from features to the parameters of an action distribution, and to values.

Outputs of a discrete space are logits (A, n). Outputs of a continuous space are means (a, n) and
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
Outputs = Any  # mx.array, or a tuple of two


@dataclass(frozen=True)
class Decoder(ABC):
    """Base class of the decoders: deviation weights and the split of one product."""

    action: ActionSpec
    hidden: int  # H
    limits: ActionBounds = UNBOUNDED  # of continuous actions
    logstd_init: float = 0.0  # of continuous actions

    @property
    def distribution(self) -> Categorical | Gaussian:
        """Action distribution of the outputs."""
        return distribution(self.action, self.limits)

    def logstd(self, weights: Weights) -> mx.array | None:
        """Return the clamped log standard deviations (1, a), or None for a discrete space."""
        if not self.action.continuous:
            return None
        return clamp(weights["logstd"], self.limits.lowest, self.limits.highest)

    def _deviations(self) -> Weights:
        if not self.action.continuous:
            return {}
        return {"logstd": mx.full((1, self.action.heads), self.logstd_init)}

    @abstractmethod
    def init(self, key: mx.array) -> Weights:
        """Return new weights."""

    @abstractmethod
    def product(
        self, weights: Weights, h: mx.array, value_features: mx.array | None = None
    ) -> mx.array:
        """Compute outputs and values in one array (A + 1, n) of the weights' dtype.

        Args:
            weights: the decoder's weights.
            h: features (n, H).
            value_features: features (n, H) of the value head; None for ``h``.
        """

    def __call__(self, weights: Weights, h: mx.array) -> tuple[Outputs, mx.array]:
        """Compute outputs and values (n,) from features (n, H)."""
        return self.split(weights, self.product(weights, h))

    def split(self, weights: Weights, y: mx.array) -> tuple[Outputs, mx.array]:
        """Split the product (A + 1, n) into outputs and values (n,), both float32."""
        y = y.astype(mx.float32)
        logstd = self.logstd(weights)
        if logstd is None:
            return y[:-1], y[-1:].squeeze(0)
        means = clamp(y[:-1], -self.limits.action, self.limits.action)
        return (means, logstd.astype(mx.float32).T), y[-1:].squeeze(0)


@dataclass(frozen=True)
class Fused(Decoder):
    """Upstream's native decoder: one linear layer without bias. The last row is the value."""

    def init(self, key: mx.array) -> Weights:
        """Return a weight (A + 1, H), uniform within ±1/sqrt(H)."""
        shape = (self.action.logits + 1, self.hidden)
        return {"weight": uniform(key, shape, self.hidden**-0.5), **self._deviations()}

    def product(
        self, weights: Weights, h: mx.array, value_features: mx.array | None = None
    ) -> mx.array:
        """See ``Decoder``."""
        weight = weights["weight"]
        if value_features is None:
            return linear_columns(h, weight)
        A = self.action.logits
        return mx.concatenate(
            [linear_columns(h, weight[:A]), linear_columns(value_features, weight[A:])]
        )


# Gains of the orthogonal initial weights of actions and value; biases start at 0. None: uniform.
# PufferLib 3.0's are those of its recurrent wrapper.
GAINS = {"torch": None, "puffer3": (1.0, 1.0), "sb3": (0.01, 1.0)}


@dataclass(frozen=True)
class Separate(Decoder):
    """The decoder of upstream's torch classes: one linear layer each for actions and value.

    Initial weights are orthogonal with ``gains``, or uniform within ±1/sqrt(H) if it is None.
    """

    gains: tuple[float, float] | None = None

    def init(self, key: mx.array) -> Weights:
        """Return weights (A, H) and (1, H), biases (A,) and (1,)."""
        keys = mx.random.split(key)
        gains = self.gains or (None, None)
        actions = self._head(keys[0], self.action.logits, gains[0])
        return {**self._deviations(), "actions": actions, "value": self._head(keys[1], 1, gains[1])}

    def _head(self, key: mx.array, rows: int, gain: float | None) -> dict[str, mx.array]:
        shape = rows, self.hidden
        return uniform_layer(key, shape) if gain is None else orthogonal_layer(key, shape, gain)

    def product(
        self, weights: Weights, h: mx.array, value_features: mx.array | None = None
    ) -> mx.array:
        """See ``Decoder``. Heads with the same features share one product."""
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
