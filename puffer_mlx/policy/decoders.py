"""Decoders: features to the parameters of an action distribution, and to values.

A discrete space gives logits (A, n); a continuous one means (a, n) and log standard deviations
(a, 1), which are weights of their own (``logstd``, 0 at first). See ``distributions.py``.

Outputs and values are float32 whatever the weights are: exponentials, sums and differences of them
follow, and a loss.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import linear_columns
from puffer_mlx.policy.activations import orthogonal, uniform
from puffer_mlx.policy.distributions import (
    OPEN,
    Categorical,
    Gaussian,
    Limits,
    distribution,
    limited,
)
from puffer_mlx.spec import ActionSpec

Weights = dict[str, Any]
Outputs = Any  # mx.array, or a tuple of two


@dataclass(frozen=True)
class Decoder(ABC):
    """What both decoders share: the weights of the deviations, and the split of one product."""

    action: ActionSpec
    hidden: int  # H
    limits: Limits = OPEN  # of continuous actions

    @property
    def distribution(self) -> Categorical | Gaussian:
        """What the outputs mean."""
        return distribution(self.action, self.limits)

    def logstd(self, weights: Weights) -> mx.array | None:
        """Log standard deviations (1, a) within the limits; None of a discrete space."""
        if not self.action.continuous:
            return None
        return limited(weights["logstd"], self.limits.lowest, self.limits.highest)

    def _deviations(self) -> Weights:
        return {"logstd": mx.zeros((1, self.action.heads))} if self.action.continuous else {}

    @abstractmethod
    def product(self, weights: Weights, h: mx.array) -> mx.array:
        """Features (n, H) -> (A + 1, n) of the weights' dtype: the outputs, then the values."""

    def __call__(self, weights: Weights, h: mx.array) -> tuple[Outputs, mx.array]:
        """Features (n, H) -> outputs, values (n,)."""
        return self.split(weights, self.product(weights, h))

    def split(self, weights: Weights, y: mx.array) -> tuple[Outputs, mx.array]:
        """The product (A + 1, n) as outputs and values (n,), float32."""
        y, logstd = y.astype(mx.float32), self.logstd(weights)
        if logstd is None:
            return y[:-1], y[-1]
        means = limited(y[:-1], -self.limits.action, self.limits.action)
        return (means, logstd.astype(mx.float32).T), y[-1]


@dataclass(frozen=True)
class Fused(Decoder):
    """Upstream's native decoder: one product without bias; the value is the last row."""

    def init(self, key: mx.array) -> Weights:
        """Weight (A + 1, H), uniform within ±1/sqrt(H)."""
        shape = (self.action.logits + 1, self.hidden)
        return {"weight": uniform(key, shape, self.hidden**-0.5), **self._deviations()}

    def product(self, weights: Weights, h: mx.array) -> mx.array:
        """See ``Decoder``."""
        return linear_columns(h, weights["weight"])


@dataclass(frozen=True)
class Separate(Decoder):
    """The decoder of upstream's torch classes: actions and value each with weight and bias.

    ``orthogonal_init`` starts as PufferLib 3.0 under its wrapper (orthogonal, gain 1, biases
    0) instead of uniform within ±1/sqrt(H).
    """

    orthogonal_init: bool = False

    def init(self, key: mx.array) -> Weights:
        """Weights (A, H) and (1, H), biases (A,) and (1,)."""
        keys = mx.random.split(key)
        rows = {"actions": self.action.logits, "value": 1}
        heads = {name: self._head(k, n) for k, (name, n) in zip(keys, rows.items(), strict=True)}
        return {**self._deviations(), **heads}

    def _head(self, key: mx.array, rows: int) -> dict[str, mx.array]:
        if self.orthogonal_init:
            return {"weight": orthogonal(key, (rows, self.hidden)), "bias": mx.zeros(rows)}
        weight, bias = mx.random.split(key)
        bound = self.hidden**-0.5
        return {
            "weight": uniform(weight, (rows, self.hidden), bound),
            "bias": uniform(bias, (rows,), bound),
        }

    def product(self, weights: Weights, h: mx.array) -> mx.array:
        """See ``Decoder``; one product for both heads."""
        heads = weights["actions"], weights["value"]
        weight = mx.concatenate([head["weight"] for head in heads])
        bias = mx.concatenate([head["bias"] for head in heads])
        return linear_columns(h, weight, bias)
