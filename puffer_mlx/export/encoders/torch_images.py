"""Modules of PufferLib's torch backend for images, rewritten with the same keys.

Imported inside functions only, because this module imports torch.
"""

from typing import Any

import mlx.core as mx
from torch import Tensor, nn
from torch.nn import functional


class ImageEncoder(nn.Module):
    """PyTorch encoder of images: flat observations, channels last, from 0 to 255."""

    def __init__(self, shape: tuple[int, ...], network: nn.Sequential) -> None:
        super().__init__()
        self.shape = shape
        self.network = network

    def forward(self, observations: Tensor) -> Tensor:
        """Encode flat images (n, D) float32 as features (n, H)."""
        images = observations.reshape(-1, *self.shape).permute(0, 3, 1, 2)
        return self.network(images / 255)


def last_columns(encoder: Any) -> int:
    """Return the number of inputs F of an image encoder's last linear layer."""
    return encoder.init(mx.random.key(0))["linear"]["weight"].shape[1]  # only a shape


class Residual(nn.Module):
    """Residual block of the Impala encoder in PyTorch."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the residual block to features x (n, C, h, w). Returns the same shape."""
        return x + self.conv1(functional.relu(self.conv0(functional.relu(x))))


class ConvSequence(nn.Module):
    """Block of the Impala encoder in PyTorch: convolution, pooling by 2, two residual blocks."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, channels, 3, padding=1)
        self.res_block0 = Residual(channels)
        self.res_block1 = Residual(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to images x (n, I, h, w). Returns (n, C, ceil(h / 2), ceil(w / 2))."""
        x = functional.max_pool2d(self.conv(x), 3, stride=2, padding=1)
        return self.res_block1(self.res_block0(x))
