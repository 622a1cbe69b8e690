"""Impala of PufferLib 4.0's torch backend, with its keys.

Imported inside functions only: it imports torch.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from puffer_mlx.policy.encoders.impala.encoder import IMPALA
from puffer_mlx.policy.encoders.torch_images import ImageEncoder, last_columns


class Residual(nn.Module):
    """A residual block of Impala."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, h, w), unchanged shape."""
        return x + self.conv1(functional.relu(self.conv0(functional.relu(x))))


class ConvSequence(nn.Module):
    """A block of Impala: convolution, pooling by 2, two residual blocks."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, channels, 3, padding=1)
        self.res_block0 = Residual(channels)
        self.res_block1 = Residual(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(n, I, h, w) -> (n, C, ceil(h / 2), ceil(w / 2))."""
        x = functional.max_pool2d(self.conv(x), 3, stride=2, padding=1)
        return self.res_block1(self.res_block0(x))


class ImpalaEncoder(ImageEncoder):
    """Three blocks, then a product between two ReLUs."""

    def __init__(self, shape: tuple[int, ...], hidden: int, features: int) -> None:
        inputs = (shape[-1], *IMPALA)
        blocks = [ConvSequence(*pair) for pair in zip(inputs, IMPALA, strict=False)]
        last = [nn.Flatten(), nn.ReLU(), nn.Linear(features, hidden), nn.ReLU()]
        super().__init__(shape, nn.Sequential(*blocks, *last))


def make(encoder: Any) -> ImpalaEncoder:
    """The module of an encoder of ours, with fresh weights."""
    return ImpalaEncoder(encoder.shape, encoder.hidden, last_columns(encoder))
