"""Shared by the recurrent networks: a stack of layers, one step as a scan, gated weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import mlx.core as mx

from puffer_mlx.policy.activations import orthogonal
from puffer_mlx.policy.networks import NotDone
from puffer_mlx.system.plain_functions import record

GATED = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # tensors of a gated layer

# (h (T, S, H), weights, state, not_done) -> outputs (T, S, H), state
LayerFunction = Callable[[mx.array, Any, Any, NotDone], tuple[mx.array, Any]]


def through_layers(
    layer: LayerFunction,
    weights: Sequence[Any],
    h: mx.array,
    state: Sequence[Any] | None,
    not_done: NotDone,
) -> tuple[mx.array, list[Any]]:
    """Feed features through a stack of layers.

    Args:
        layer: computes one layer over T steps.
        weights: the parameters of each layer.
        h: features (T, S, H).
        state: initial state of each layer; None passes None to the layers.
        not_done: (T, S), factors that multiply the states at the start of each step; None for 1.

    Returns:
        The last layer's outputs (T, S, H), and each layer's state after the last step.
    """
    after = []
    for parameters, first in zip(weights, state or [None] * len(weights), strict=True):
        h, last = layer(h, parameters, first, not_done)
        after.append(last)
    return h, after


@dataclass(frozen=True)
class Recurrent:
    """A network of L layers with ``scan``; ``step`` is a scan of one step."""

    hidden: int
    layers: int

    scan: ClassVar[Callable[..., tuple[mx.array, Any]]]

    def initial_state(self, n: int) -> Any:
        """Return L arrays of zeros (n, H), float32."""
        return [mx.zeros((n, self.hidden)) for _ in range(self.layers)]

    def step(
        self, weights: Any, h: mx.array, state: Any, not_done: NotDone = None
    ) -> tuple[mx.array, Any]:
        """Compute one step of n agents: see ``networks.Network``."""
        h, state = self.scan(weights, h[None], state, None if not_done is None else not_done[None])
        return h.squeeze(0), state


def gated_weights(key: mx.array, hidden: int, gates: int) -> dict[str, mx.array]:
    """Return the initial weights of one layer whose gates see its state, under PyTorch's names.

    ``weight_ih`` and ``weight_hh`` (gates H, H) are orthogonal, ``bias_ih`` and ``bias_hh`` 0.
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
    """Return the shapes of ``gated_weights``, by name."""
    rows = gates * hidden
    return {name: (rows, hidden) if name.startswith("weight") else (rows,) for name in GATED}


record(__name__)
