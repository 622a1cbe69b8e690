"""Encoders: from observations to features. One file each.

A file contains ``NAME``, a value of ``torch.encoder``; the classes, in plain MLX; ``make``, which
chooses a class for an environment; and ``FACTS``, facts about each class for other packages. To
export an encoder to PyTorch and ONNX, add a file of the same name to ``export/encoders``. Names of
tensors are given without ``encoder.``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

Weights = Any  # a tree of arrays, as ``Encoder.init`` returns it


class Encoder(Protocol):
    """Maps observations (n, D), any dtype, to features (n, H) of the weights' dtype."""

    @property
    def hidden(self) -> int:
        """Number H of features."""
        ...

    def init(self, key: mx.array) -> dict:
        """Return initial weights."""
        ...

    def __call__(self, weights: dict, observations: mx.array) -> mx.array:
        """Compute the features of n observations."""
        ...


@dataclass(frozen=True)
class EncoderFacts:
    """Facts about an encoder for other packages.

    Args:
        name: the value of ``torch.encoder``.
        flat: True if PufferLib's flat file can hold it.
        activation: (encoder) -> the activation after its only linear layer, a name of
            ``ops.linear.CODES``; None for other encoders, which have no C form.
    """

    name: str = ""
    flat: bool = False
    activation: Callable[[Any], str] | None = None


NO_FACTS = EncoderFacts()  # for the user's encoders
