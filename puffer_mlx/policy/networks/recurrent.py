"""What the recurrent networks share: layers one after the other, and a step as a scan of one."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

# (h (T, S, H), weights, state, keep) -> outputs (T, S, H), state
Layer = Callable[[mx.array, Any, Any, mx.array | None], tuple[mx.array, Any]]


def through_layers(
    layer: Layer, weights: Sequence[Any], h: mx.array, state: Sequence[Any], keep: mx.array | None
) -> tuple[mx.array, list[Any]]:
    """Each layer's outputs are the next one's input; returns the last ones and every state."""
    after = []
    for own, first in zip(weights, state, strict=True):
        h, last = layer(h, own, first, keep)
        after.append(last)
    return h, after


class Recurrent:
    """Gives ``step`` to a network that has ``scan``."""

    scan: Callable[..., tuple[mx.array, Any]]

    def step(
        self, weights: Any, h: mx.array, state: Any, keep: mx.array | None = None
    ) -> tuple[mx.array, Any]:
        """One step of n agents: see ``networks.Network``."""
        h, state = self.scan(weights, h[None], state, None if keep is None else keep[None])
        return h.squeeze(0), state
