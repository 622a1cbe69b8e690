"""The image encoder of "IMPALA" (Espeholt et al. 2018): residual convolutions.

Tensors: ``blocks.{i}.conv.*``, ``blocks.{i}.res{0,1}.conv{0,1}.*`` and ``linear.*``.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import plus, relu
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

NAME = "ImpalaEncoder"
BLOCK_CHANNELS = (16, 32, 32)


def convolve(conv: LayerWeights, x: mx.array) -> mx.array:
    """Compute a 3x3 convolution of images; padding preserves height and width."""
    return plus(mx.conv2d(x, conv["weight"], padding=1), conv["bias"])


def _halve(x: mx.array, axis: int) -> mx.array:
    """Max-pool images along an axis: windows of 3, stride 2, padding 1; size m -> ceil(m / 2).

    Window i contains positions 2i - 1, 2i and 2i + 1. x is split into even and odd positions,
    because the gradient of a split is one concatenation, but the gradient of a strided slice is a
    full-size array.
    """
    m = x.shape[axis]

    def pad(x: mx.array, left: int, right: int) -> mx.array:
        widths = [(left, right) if a == axis else (0, 0) for a in range(x.ndim)]
        return mx.pad(x, widths, constant_values=-mx.inf)

    if m % 2:
        x = pad(x, 0, 1)
    pairs = x.reshape(*x.shape[:axis], -1, 2, *x.shape[axis + 1 :])
    even, odd = (half.squeeze(axis + 1) for half in mx.split(pairs, 2, axis=axis + 1))
    previous = mx.split(pad(odd, 1, 0), [odd.shape[axis]], axis=axis)[0]
    return mx.maximum(mx.maximum(even, odd), previous)


def _residual(block: dict[str, LayerWeights], x: mx.array) -> mx.array:
    return x + convolve(block["conv1"], relu(convolve(block["conv0"], relu(x))))


def _block_weights(inputs: int, channels: int, key: mx.array) -> dict[str, Any]:
    """Return initial weights of one Impala block: a convolution and two residual blocks."""
    first, *keys = mx.random.split(key, 5)
    same = [uniform_layer(k, (channels, 3, 3, channels)) for k in keys]
    return {
        "conv": uniform_layer(first, (channels, 3, 3, inputs)),
        "res0": {"conv0": same[0], "conv1": same[1]},
        "res1": {"conv0": same[2], "conv1": same[3]},
    }


@dataclass(frozen=True)
class Impala:
    """Encodes images as Espeholt et al., "IMPALA", without the recurrent layer.

    Three blocks with 16, 32 and 32 channels, each a 3x3 convolution, 3x3 max-pooling with stride 2
    and two residual blocks; then ReLU, a linear layer, and ReLU.

    Args:
        shape: Height, width and channels of an image.
        hidden: Number H of features.
    """

    shape: Shape
    hidden: int

    def init(self, key: mx.array) -> dict[str, Any]:
        """Return the Impala encoder's initial weights: convolutions, a linear layer, and biases."""
        *keys, last = mx.random.split(key, len(BLOCK_CHANNELS) + 1)
        h, w, c = self.shape
        blocks = []
        for channels, k in zip(BLOCK_CHANNELS, keys, strict=True):
            blocks.append(_block_weights(c, channels, k))
            h = -(-h // 2)
            w = -(-w // 2)
            c = channels
        return {"blocks": blocks, "linear": uniform_layer(last, (self.hidden, h * w * c))}

    def __call__(self, weights: dict[str, Any], observations: mx.array) -> mx.array:
        """Encode flat images (n, D) as features (n, H) with Impala's convolutions."""
        return float32_on_cpu(self._encode)(weights, observations)

    def _encode(self, weights: dict[str, Any], observations: mx.array) -> mx.array:
        first, *rest = weights["blocks"]
        conv, x = scale_pixels(first["conv"], observations.reshape(-1, *self.shape))
        x = x.astype(conv["weight"].dtype)
        for block in ({**first, "conv": conv}, *rest):
            x = convolve(block["conv"], x)
            x = _halve(_halve(x, 1), 2)
            x = _residual(block["res1"], _residual(block["res0"], x))
        return compute_features(weights["linear"], relu(x))


def make(spec: EnvSpec, hidden: int, weight_layout: str, activation: str) -> Impala:
    """Create the Impala encoder for an environment whose observations are images."""
    return Impala(image_shape(spec, NAME), hidden)


FACTS = {Impala: EncoderFacts(NAME)}
