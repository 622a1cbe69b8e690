"""Functions and a base class that the recurrent networks share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import mlx.core as mx

from puffer_mlx.policy.activations import orthogonal
from puffer_mlx.policy.networks import NotDone
from puffer_mlx.system.plain_functions import record

GATED_TENSORS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")

# (features (T, S, H), weights, state, not_done) -> outputs (T, S, H), next state
LayerFunction = Callable[[mx.array, Any, Any, NotDone], tuple[mx.array, Any]]


def through_layers(
    layer: LayerFunction,
    weights: Sequence[Any],
    h: mx.array,
    state: Sequence[Any] | None,
    not_done: NotDone,
) -> tuple[mx.array, list[Any]]:
    """Evaluate a stack of recurrent layers over T steps, each on the outputs of the layer before.

    Args:
        layer: Computes one layer over T steps.
        weights: Weights of each layer.
        h: Features (T, S, H).
        state: Initial state of each layer. If None, each layer gets None.
        not_done: (T, S), factors that multiply the states at the start of each step; None for 1.

    Returns:
        The last layer's outputs (T, S, H), and each layer's state after the last step.
    """
    last_states = []
    for layer_weights, first in zip(weights, state or [None] * len(weights), strict=True):
        h, last = layer(h, layer_weights, first, not_done)
        last_states.append(last)
    return h, last_states


@dataclass(frozen=True)
class Recurrent:
    """Base class of recurrent networks with L layers. One acting step calls ``scan`` with T = 1."""

    hidden: int
    layers: int

    scan: ClassVar[Callable[..., tuple[mx.array, Any]]]

    def initial_state(self, n: int) -> Any:
        """Return a recurrent network's initial state for n agents: L arrays of zeros (n, H)."""
        return [mx.zeros((n, self.hidden)) for _ in range(self.layers)]

    def step(
        self, weights: Any, h: mx.array, state: Any, not_done: NotDone = None
    ) -> tuple[mx.array, Any]:
        """Evaluate a recurrent network for one step of n agents: see ``Network.step``."""
        h, state = self.scan(weights, h[None], state, None if not_done is None else not_done[None])
        return h.squeeze(0), state


def gated_weights(key: mx.array, hidden: int, gates: int) -> dict[str, mx.array]:
    """Return the initial weights of an LSTM or GRU layer, with PyTorch's names.

    ``weight_ih`` and ``weight_hh`` (gates H, H) are orthogonal, ``bias_ih`` and ``bias_hh`` 0.

    Args:
        key: Random key.
        hidden: Number H of features.
        gates: Number of gates: 4 for an LSTM, 3 for a GRU.
    """
    input_key, state_key = mx.random.split(key)
    shape = (gates * hidden, hidden)
    return {
        "weight_ih": orthogonal(input_key, shape),
        "weight_hh": orthogonal(state_key, shape),
        "bias_ih": mx.zeros(shape[0]),
        "bias_hh": mx.zeros(shape[0]),
    }


def gated_shapes(hidden: int, gates: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of an LSTM or GRU layer, by name."""
    rows = gates * hidden
    return {
        name: (rows, hidden) if name.startswith("weight") else (rows,) for name in GATED_TENSORS
    }


record(__name__)
