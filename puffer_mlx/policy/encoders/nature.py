"""The image encoder of "Human-level control ..." (Mnih et al. 2015): three convolutions.

Tensors: ``convs.{i}.*`` and ``linear.*``.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops import relu
from puffer_mlx.ops.linear import linear
from puffer_mlx.ops.low_precision import float32_on_cpu
from puffer_mlx.policy.activations import uniform_layer
from puffer_mlx.policy.encoders import EncoderFacts
from puffer_mlx.policy.encoders.images import (
    LayerWeights,
    Shape,
    compute_features,
    image_shape,
    scale_pixels,
)
from puffer_mlx.spec import EnvSpec

NAME = "NatureEncoder"
CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride of each convolution
MIN_IMAGE_SIDE = 36  # pixels; the convolutions reduce 36x36 pixels to 1x1


def _space_to_depth(x: mx.array, stride: int) -> mx.array:
    """Merge each square of stride x stride pixels of x (n, h, w, c) into one pixel."""
    n, h, w, c = x.shape
    x = x.reshape(n, h // stride, stride, w // stride, stride * c).transpose(0, 1, 3, 2, 4)
    return x.reshape(n, h // stride, w // stride, stride * stride * c)


def _windows(x: mx.array, size: int) -> mx.array:
    """Return all windows of size x size pixels: (n, h, w, c) -> (n, h', w', size² c)."""
    h = x.shape[1] - size + 1
    w = x.shape[2] - size + 1
    if h == w == 1:
        return x.reshape(len(x), 1, 1, -1)
    shifted = [x[:, i : i + h, j : j + w] for i in range(size) for j in range(size)]
    return mx.concatenate(shifted, axis=-1)


def _convolve(conv: LayerWeights, x: mx.array, stride: int) -> mx.array:
    """Compute a convolution of x (n, h, w, c) without padding: (n, h', w', O).

    Merging squares of pixels into one pixel, in x and in the weight, makes the stride 1. The result
    is then a matrix product of windows and weights. The kernel size must be a multiple of the
    stride.
    """
    weight = conv["weight"]
    O, size = weight.shape[:2]  # noqa: E741
    unused_rows, unused_columns = ((side - size) % stride for side in x.shape[1:3])
    if unused_rows or unused_columns:  # at the lower and right border
        x = x[:, : x.shape[1] - unused_rows, : x.shape[2] - unused_columns]
    if stride > 1:
        x = _space_to_depth(x, stride)
        weight = _space_to_depth(weight, stride)
    windows = _windows(x, size // stride)
    flat = windows.reshape(-1, windows.shape[-1])
    return linear(flat, weight.reshape(O, -1), conv["bias"]).reshape(*windows.shape[:3], O)


@dataclass(frozen=True)
class Nature:
    """Encodes images as Mnih et al., "Human-level control through deep reinforcement learning".

    Three convolutions and a linear layer, with ReLU after each: 32 channels, 8x8, stride 4; 64
    channels, 4x4, stride 2; 64 channels, 3x3, stride 1.

    Args:
        shape: Height, width (at least 36 each) and channels of an image.
        hidden: Number H of features.
    """

    shape: Shape
    hidden: int

    def __post_init__(self) -> None:
        if min(self.shape[:2]) < MIN_IMAGE_SIDE:
            raise UserError(
                f"NatureEncoder needs images of at least {MIN_IMAGE_SIDE}x{MIN_IMAGE_SIDE},"
                f" got {self.shape[0]}x{self.shape[1]}",
                "choose torch.encoder = ImpalaEncoder",
            )

    def init(self, key: mx.array) -> dict[str, Any]:
        """Return the Nature encoder's initial weights: convolutions, a linear layer, and biases."""
        *keys, last = mx.random.split(key, len(CONVOLUTIONS) + 1)
        h, w, c = self.shape
        convs = []
        for (channels, size, stride), k in zip(CONVOLUTIONS, keys, strict=True):
            convs.append(uniform_layer(k, (channels, size, size, c)))
            h = (h - size) // stride + 1
            w = (w - size) // stride + 1
            c = channels
        return {"convs": convs, "linear": uniform_layer(last, (self.hidden, h * w * c))}

    def __call__(self, weights: dict[str, Any], observations: mx.array) -> mx.array:
        """Encode flat images (n, D) as features (n, H) with Nature's convolutions."""
        return float32_on_cpu(self._encode)(weights, observations)

    def _encode(self, weights: dict[str, Any], observations: mx.array) -> mx.array:
        first, *rest = weights["convs"]
        first, x = scale_pixels(first, observations.reshape(-1, *self.shape))
        for conv, (_, _, stride) in zip([first, *rest], CONVOLUTIONS, strict=True):
            x = relu(_convolve(conv, x, stride))
        return compute_features(weights["linear"], x)


def make(spec: EnvSpec, hidden: int, weight_layout: str, activation: str) -> Nature:
    """Create the Nature encoder for an environment whose observations are images."""
    return Nature(image_shape(spec, NAME), hidden)


FACTS = {Nature: EncoderFacts(NAME)}
