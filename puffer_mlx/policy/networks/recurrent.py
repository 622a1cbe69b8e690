"""What the recurrent networks share: layers one after the other, and a step as a scan of one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import mlx.core as mx

from puffer_mlx.policy.activations import orthogonal

GATED = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # of a layer whose gates see its state

# (h (T, S, H), weights, state, keep) -> outputs (T, S, H), state
Layer = Callable[[mx.array, Any, Any, mx.array | None], tuple[mx.array, Any]]


def through_layers(
    layer: Layer,
    weights: Sequence[Any],
    h: mx.array,
    state: Sequence[Any] | None,
    keep: mx.array | None,
) -> tuple[mx.array, list[Any]]:
    """Each layer's outputs are the next one's input; returns the last ones and every state.

    Without a state, each layer is given None.
    """
    after = []
    for parameters, first in zip(weights, state or [None] * len(weights), strict=True):
        h, last = layer(h, parameters, first, keep)
        after.append(last)
    return h, after


@dataclass(frozen=True)
class Recurrent:
    """L layers, H wide: gives ``step`` to a network that has ``scan``."""

    hidden: int
    layers: int

    scan: ClassVar[Callable[..., tuple[mx.array, Any]]]

    def initial_state(self, n: int) -> Any:
        """L arrays of zeros (n, H), float32."""
        return [mx.zeros((n, self.hidden)) for _ in range(self.layers)]

    def step(
        self, weights: Any, h: mx.array, state: Any, keep: mx.array | None = None
    ) -> tuple[mx.array, Any]:
        """One step of n agents: see ``networks.Network``."""
        h, state = self.scan(weights, h[None], state, None if keep is None else keep[None])
        return h.squeeze(0), state


def gated_weights(key: mx.array, hidden: int, gates: int) -> dict[str, mx.array]:
    """Initial weights of one layer whose gates see its state, names as PyTorch's.

    Orthogonal ``weight_ih`` and ``weight_hh`` (gates H, H); ``bias_ih`` and ``bias_hh`` are 0.
    """
    of_input, of_state = mx.random.split(key)
    shape = (gates * hidden, hidden)
    return {
        "weight_ih": orthogonal(of_input, shape),
        "weight_hh": orthogonal(of_state, shape),
        "bias_ih": mx.zeros(shape[0]),
        "bias_hh": mx.zeros(shape[0]),
    }


def gated_shapes(hidden: int, gates: int) -> dict[str, tuple[int, ...]]:
    """The shapes of ``gated_weights``, by name."""
    rows = gates * hidden
    return {name: (rows, hidden) if name.startswith("weight") else (rows,) for name in GATED}
