"""Encoders: observations to features."""

from dataclasses import dataclass

import mlx.core as mx

from puffer_mlx.ops import linear


@dataclass(frozen=True)
class Linear:
    """Upstream's native encoder: one product, no bias, activation or scaling."""

    inputs: int  # D
    hidden: int  # H

    def init(self, key: mx.array) -> dict[str, mx.array]:
        """Weight (H, D), uniform within ±sqrt(2 / D)."""
        bound = (2 / self.inputs) ** 0.5
        return {"weight": mx.random.uniform(-bound, bound, (self.hidden, self.inputs), key=key)}

    def __call__(self, weights: dict[str, mx.array], observations: mx.array) -> mx.array:
        """Observations (n, D), any dtype -> features (n, H) float32."""
        return linear(observations.astype(mx.float32), weights["weight"])
