"""The default encoder of PufferLib 4.0's torch backend, with its keys.

Imported inside functions only: it imports torch.
"""

from typing import Any

from torch import Tensor, nn


class DefaultEncoder(nn.Module):
    """4.0's: a product with bias."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(inputs, hidden)

    def forward(self, observations: Tensor) -> Tensor:
        """(n, D) float32 -> (n, H)."""
        return self.encoder(observations)


def make(encoder: Any) -> DefaultEncoder:
    """The module of an encoder of ours, with fresh weights."""
    return DefaultEncoder(encoder.inputs, encoder.hidden)
