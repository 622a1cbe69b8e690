"""Nature of PufferLib 4.0's torch backend, with its keys.

Imported inside functions only: it imports torch.
"""

from typing import Any

from torch import nn

from puffer_mlx.policy.encoders.nature.encoder import NATURE
from puffer_mlx.policy.encoders.torch_images import ImageEncoder, last_columns


class NatureEncoder(ImageEncoder):
    """Three convolutions and a product, with ReLU after each."""

    def __init__(self, shape: tuple[int, ...], hidden: int, features: int) -> None:
        layers, channels = [], shape[-1]
        for width, size, stride in NATURE:
            layers += [nn.Conv2d(channels, width, size, stride), nn.ReLU()]
            channels = width
        last = [nn.Flatten(), nn.Linear(features, hidden), nn.ReLU()]
        super().__init__(shape, nn.Sequential(*layers, *last))


def make(encoder: Any) -> NatureEncoder:
    """The module of an encoder of ours, with fresh weights."""
    return NatureEncoder(encoder.shape, encoder.hidden, last_columns(encoder))
