"""MLP: a network without memory, with the interface of the recurrent ones."""

from dataclasses import dataclass

import mlx.core as mx

from puffer_mlx.ops import dense
from puffer_mlx.policy.activations import orthogonal, uniform

Weights = list[dict[str, mx.array]]
State = list[mx.array]


@dataclass(frozen=True)
class MLP:
    """L times a product with bias (H to H) and an activation. State: none, an empty list.

    Args:
        hidden: H.
        layers: L.
        activation: as of ``ops.dense``: exact GELU, or what sb3's dialect is told.
        gain: of orthogonal initial weights, with biases 0, as sb3's; None: uniform, as PufferLib's.
    """

    hidden: int
    layers: int
    activation: str = "gelu"
    gain: float | None = None

    def init(self, key: mx.array) -> Weights:
        """Weights (H, H) and biases (H,): see ``gain``; uniform ones are within ±1/sqrt(H)."""
        bound, H = self.hidden**-0.5, self.hidden
        if self.gain is not None:
            return [
                {"weight": orthogonal(key, (H, H), self.gain), "bias": mx.zeros(H)}
                for key in mx.random.split(key, self.layers)
            ]
        return [
            {"weight": uniform(k, (H, H), bound), "bias": uniform(b, (H,), bound)}
            for k, b in (mx.random.split(key) for key in mx.random.split(key, self.layers))
        ]

    def initial_state(self, n: int) -> State:
        """Nothing to remember."""
        return []

    def scan(
        self, weights: Weights, h: mx.array, state: State, keep: mx.array | None = None
    ) -> tuple[mx.array, State]:
        """T steps of S segments, (T, S, H) to (T, S, H); ``keep`` has nothing to act on."""
        out, state = self.step(weights, h.reshape(-1, self.hidden), state)
        return out.reshape(h.shape), state

    def step(
        self, weights: Weights, h: mx.array, state: State, keep: mx.array | None = None
    ) -> tuple[mx.array, State]:
        """One step of n agents, (n, H) to (n, H)."""
        for layer in weights:
            h = dense(h, layer["weight"], layer["bias"], self.activation)
        return h, state
