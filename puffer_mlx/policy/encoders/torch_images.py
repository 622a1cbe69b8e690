"""What the torch modules of the image encoders share.

Imported inside functions only: it imports torch.
"""

from typing import Any

import mlx.core as mx
from torch import Tensor, nn


class ImageEncoder(nn.Module):
    """What is common to the encoders of images: flat observations, channels last, up to 255."""

    def __init__(self, shape: tuple[int, ...], network: nn.Sequential) -> None:
        super().__init__()
        self.shape = shape
        self.network = network

    def forward(self, observations: Tensor) -> Tensor:
        """(n, D) float32 -> (n, H)."""
        images = observations.reshape(-1, *self.shape).permute(0, 3, 1, 2)
        return self.network(images / 255)


def last_columns(encoder: Any) -> int:
    """F: what the last product takes."""
    return encoder.init(mx.random.key(0))["linear"]["weight"].shape[1]  # only a shape
