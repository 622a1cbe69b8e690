"""Encoders: observations to features. A file each, with all its forms.

A file has ``NAME``, as ``torch.encoder`` says it; the classes, equations in MLX; ``make``, which
chooses one for an environment; and ``FORMS`` by class: what they are besides their equations, for
the rest of puffer_mlx. Each form is optional; an encoder without one can't go where that is needed,
and is told so there. Names of tensors are those below ``encoder.``. Builders of graphs are given as
arguments, so an encoder knows none of the rooms above it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

Weights = Any  # as the encoder's ``init`` makes them


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
class Forms:
    """Facts about an encoder for other rooms.

    Args:
        name: the value of ``torch.encoder``.
        flat: True if PufferLib's flat file can hold it.
        activation: (encoder) -> the activation after its only linear layer, a name of
            ``ops.linear.CODES``; None for other encoders, which have no C form.
    """

    name: str = ""
    flat: bool = False
    activation: Callable[[Any], str] | None = None


NONE = Forms()  # of an encoder of the user's own
