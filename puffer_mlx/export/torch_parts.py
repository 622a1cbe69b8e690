"""The encoders and the decoder of PufferLib 4.0's torch backend, written anew.

Their state_dict keys are upstream's. See ``torch_modules.py``, which composes them; like it, this
file is imported inside functions only.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from puffer_mlx.policy.encoders.images import IMPALA, NATURE
from puffer_mlx.spec import ActionSpec
from puffer_mlx.vec.normalize import EPSILON, LIMIT

Outputs = Any  # Tensor, or a tuple of two

# ---- observations --------------------------------------------------------------------------------


class Moments(nn.Module):
    """The statistics of columns: buffers, which the state_dict holds."""

    mean: Tensor  # (D,)
    variance: Tensor  # (D,)
    count: Tensor  # (): of rows; only for training on

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("count", torch.zeros(()))


class Normalization(nn.Module):
    """Observations as the policy learned to see them: see ``vec/normalize.py``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.observations = Moments(size)

    def forward(self, observations: Tensor) -> Tensor:
        """(n, D) float32 -> the same, normalised and clipped."""
        seen = self.observations
        centred = observations - seen.mean
        return (centred / torch.sqrt(seen.variance + EPSILON)).clamp(-LIMIT, LIMIT)


# ---- encoders ------------------------------------------------------------------------------------


class DefaultEncoder(nn.Module):
    """4.0's: a product with bias."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(inputs, hidden)

    def forward(self, observations: Tensor) -> Tensor:
        """(n, D) float32 -> (n, H)."""
        return self.encoder(observations)


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


class NatureEncoder(ImageEncoder):
    """Three convolutions and a product, with ReLU after each."""

    def __init__(self, shape: tuple[int, ...], hidden: int, features: int) -> None:
        layers, channels = [], shape[-1]
        for width, size, stride in NATURE:
            layers += [nn.Conv2d(channels, width, size, stride), nn.ReLU()]
            channels = width
        last = [nn.Flatten(), nn.Linear(features, hidden), nn.ReLU()]
        super().__init__(shape, nn.Sequential(*layers, *last))


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


# ---- decoders ------------------------------------------------------------------------------------


class DefaultDecoder(nn.Module):
    """4.0's: a product for the actions and one for the value, both with bias."""

    def __init__(self, action: ActionSpec, hidden: int) -> None:
        super().__init__()
        if action.continuous:
            self.decoder_logstd = nn.Parameter(torch.zeros(1, action.heads))
            self.decoder_mean = nn.Linear(hidden, action.heads)
        else:
            self.decoder = nn.Linear(hidden, action.logits)
        self.continuous = action.continuous
        self.value_function = nn.Linear(hidden, 1)

    def forward(self, h: Tensor) -> tuple[Outputs, Tensor]:
        """(..., H) -> outputs, values (...)."""
        value = self.value_function(h).squeeze(-1)
        if not self.continuous:
            return self.decoder(h), value
        mean = self.decoder_mean(h)
        return (mean, self.decoder_logstd.expand_as(mean)), value
