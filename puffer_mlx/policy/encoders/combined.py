"""The encoder for images and other observations, as Stable-Baselines3's ``CombinedExtractor``.

Convolutions encode each image. A linear layer combines their features with all other observations.
Tensors: ``images.{i}.*`` for the encoder of image i, and ``linear.*``. PufferLib has no such class.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops.low_precision import float32_on_cpu
from puffer_mlx.policy.activations import uniform_layer
from puffer_mlx.policy.encoders import EncoderFacts
from puffer_mlx.policy.encoders.images import compute_features
from puffer_mlx.policy.encoders.impala import Impala
from puffer_mlx.policy.encoders.nature import MIN_IMAGE_SIDE, Nature
from puffer_mlx.spec import EnvSpec, ImageSlice

NAME = "CombinedEncoder"


@dataclass(frozen=True)
class Combined:
    """Encodes images and other observations: one encoder per image, then a linear layer with ReLU.

    Args:
        inputs: Observation size D.
        images: Columns and shape of each image, in ascending order of columns.
        hidden: Number H of features, also of each image's features.
    """

    inputs: int
    images: tuple[ImageSlice, ...]
    hidden: int

    @property
    def encoders(self) -> list[Nature | Impala]:
        """The encoder object of each image: ``Nature``, or ``Impala`` for small images."""
        encoders = []
        for image in self.images:
            encoder = Nature if min(image.shape[:2]) >= MIN_IMAGE_SIDE else Impala
            encoders.append(encoder(image.shape, self.hidden))
        return encoders

    @property
    def bounds(self) -> list[int]:
        """The columns at which an observation is split into other numbers and images, in turn."""
        return [0, *(n for image in self.images for n in (image.start, image.stop)), self.inputs]

    def init(self, key: mx.array) -> dict[str, Any]:
        """Return initial weights of each image's encoder, and of the linear layer.

        The linear layer's first inputs are the features of the images, H each.
        """
        *keys, last = mx.random.split(key, len(self.images) + 1)
        vector_columns = sum(stop - start for start, stop in list(pairwise(self.bounds))[::2])
        columns = len(self.images) * self.hidden + vector_columns
        pairs = zip(self.encoders, keys, strict=True)
        return {
            "images": [encoder.init(key) for encoder, key in pairs],
            "linear": uniform_layer(last, (self.hidden, columns)),
        }

    def __call__(self, weights: dict[str, Any], observations: mx.array) -> mx.array:
        """Compute the features (n, H) of observations (n, D), which contain images."""
        return float32_on_cpu(self._encode)(weights, observations)

    def _encode(self, weights: dict[str, Any], observations: mx.array) -> mx.array:
        columns = mx.split(observations, self.bounds[1:-1], axis=1)
        each = zip(self.encoders, weights["images"], self.images, columns[1::2], strict=True)
        images = [encoder(w, to_channels_last(image, x)) for encoder, w, image, x in each]
        vectors = [x.astype(images[0].dtype) for x in columns[::2]]
        return compute_features(weights["linear"], mx.concatenate([*images, *vectors], axis=1))


def to_channels_last(image: ImageSlice, x: mx.array) -> mx.array:
    """Reorder the flat pixels (n, size) of images to the order height, width, channel.

    Args:
        image: Shape of the images, and whether the channels are first in ``x``.
        x: (n, size), pixels.
    """
    if not image.channels_first:
        return x
    height, width, channels = image.shape
    return x.reshape(-1, channels, height, width).transpose(0, 2, 3, 1).reshape(x.shape)


def make(spec: EnvSpec, hidden: int, weight_layout: str, activation: str) -> Combined:
    """Create an encoder for observations that contain images and other numbers."""
    if not spec.image_parts:
        raise UserError(
            f"torch.encoder {NAME} needs images among the parts of a Dict or Tuple;"
            f" {spec.name} has none",
            "auto",
        )
    return Combined(spec.observation_size, spec.image_parts, hidden)


FACTS = {Combined: EncoderFacts(NAME)}
