"""Encoders: from observations to features. A file each.

A file has ``NAME``, a value of ``torch.encoder``; the classes, in plain MLX; ``make``, which
chooses a class for an environment; and ``FORMS`` by class, facts for other rooms. To export an
encoder to PyTorch and ONNX, too, add a file of the same name to ``export/encoders``. Tensors are
named without ``encoder.``.
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
