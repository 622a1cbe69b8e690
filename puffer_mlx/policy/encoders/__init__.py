"""Encoders: compute features from observations. Each encoder has a file.

The file contains ``NAME``, a value of ``torch.encoder``; classes in plain MLX; ``make``, which
chooses a class for an environment; and ``FACTS``, facts about each class for other packages. To
export an encoder to PyTorch and ONNX, add a file of the same name to ``export/encoders``. The files
list names of tensors without the prefix ``encoder.``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

Weights = Any  # tree of arrays, as ``Encoder.init`` returns it


class Encoder(Protocol):
    """Interface of encoders: observations (n, D) of any dtype to features (n, H).

    Features have the dtype of the weights.
    """

    @property
    def hidden(self) -> int:
        """Number H of features of an observation."""
        ...

    def init(self, key: mx.array) -> dict:
        """Return the encoder's initial weights."""
        ...

    def __call__(self, weights: dict, observations: mx.array) -> mx.array:
        """Compute the features (n, H) of n observations (n, D)."""
        ...


@dataclass(frozen=True)
class EncoderFacts:
    """Facts about an encoder class: its name, whether it can be exported, and its activation.

    Args:
        name: Value of ``torch.encoder``.
        flat: True if PufferLib's flat file can contain the encoder's weights.
        activation: Maps an encoder of one linear layer to the name of the activation after it
            (``ACTIVATION_CODES`` of ``ops.linear``); None for other encoders.
    """

    name: str = ""
    flat: bool = False
    activation: Callable[[Any], str] | None = None


NO_FACTS = EncoderFacts()  # of custom encoders
