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
class TorchForm:
    """The class of PufferLib 4.0's torch backend."""

    module: Callable[[Any], Any]
    """Of an encoder of ours: that class's module, with fresh weights."""
    key: Callable[[str], str]
    """Of a tensor's name: its key, below ``encoder.``."""
    mark: str
    """A key that no other encoder's class has, below ``encoder.``."""
    to_torch: Callable[[Any], Any] = lambda array: array
    """Of a weight, an array of NumPy's: as the class has it."""
    from_torch: Callable[[Any], Any] = lambda array: array
    """The inverse."""


@dataclass(frozen=True)
class Forms:
    """All of an encoder's forms."""

    name: str = ""
    """As ``torch.encoder`` says it."""
    onnx: Callable[[Any, Any, str], str] | None = None
    """Of (graph, encoder, observations): adds nodes to ``export.onnx_graph.Graph``; the name of the
    features."""
    torch: TorchForm | None = None
    puffer3: Callable[[str], str] | None = None
    """Of a tensor's name: its key in PufferLib 3.0's wrapper."""
    sb3: Callable[[str], str] | None = None
    """Of a tensor's name: its key in a sequence of modules of Stable-Baselines3's policy."""
    flat: bool = False
    """Whether PufferLib's flat file holds it."""
    activation: Callable[[Any], str] | None = None
    """Of an encoder of one product, the only one of the compiled step: what follows it, a name of
    ``ops.linear.CODES``."""
    mark: str = ""
    """How the names of some of its tensors begin, and no other's; empty of the default."""
    to_dialect: Callable[[Any, Weights, str], tuple[Any, Weights]] | None = None
    """Of (encoder, weights, dialect): both in another dialect; None if all have the same."""


NONE = Forms()  # of an encoder of the user's own
