"""An encoder for images and other observations: Stable-Baselines3's ``CombinedExtractor``.

Images are encoded by convolutions. A linear layer combines their features with all other
observations. Tensors: ``images.{i}.*`` of each image's encoder, and ``linear.*``. PufferLib has no
such class.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops.low_precision import float32_on_cpu
from puffer_mlx.policy.activations import uniform_layer
from puffer_mlx.policy.encoders import EncoderFacts
from puffer_mlx.policy.encoders.images import features
from puffer_mlx.policy.encoders.impala import Impala
from puffer_mlx.policy.encoders.nature import SMALLEST, Nature
from puffer_mlx.spec import EnvSpec, ImageSlice

NAME = "CombinedEncoder"


@dataclass(frozen=True)
class Combined:
    """An encoder for each image, then a linear layer with ReLU over features and the rest.

    Args:
        inputs: number D of observation columns.
        images: columns and shape of each image, in ascending order of columns.
        hidden: number H of features, and of each image's features.
    """

    inputs: int
    images: tuple[ImageSlice, ...]
    hidden: int

    @property
    def encoders(self) -> list[Nature | Impala]:
        """The encoder of each image: Nature, or Impala if the image is small."""
        sized = [(min(part.shape[:2]) >= SMALLEST, part.shape) for part in self.images]
        return [(Nature if large else Impala)(shape, self.hidden) for large, shape in sized]

    @property
    def bounds(self) -> list[int]:
        """Column boundaries of the parts: others, image, others, ...; others may be empty."""
        return [0, *(n for part in self.images for n in (part.start, part.stop)), self.inputs]

    def init(self, key: mx.array) -> dict[str, Any]:
        """Return each image's weights, and the linear layer's weight (H, K) and bias (H,).

        The first columns of the K are the features of the images, H each.
        """
        *keys, last = mx.random.split(key, len(self.images) + 1)
        others = sum(stop - start for start, stop in list(pairwise(self.bounds))[::2])
        columns = len(self.images) * self.hidden + others
        pairs = zip(self.encoders, keys, strict=True)
        return {
            "images": [encoder.init(key) for encoder, key in pairs],
            "linear": uniform_layer(last, (self.hidden, columns)),
        }

    def __call__(self, weights: dict[str, Any], observations: mx.array) -> mx.array:
        """Compute features (n, H) of observations (n, D): see ``Encoder``."""
        return float32_on_cpu(self._encode)(weights, observations)

    def _encode(self, weights: dict[str, Any], observations: mx.array) -> mx.array:
        parts = mx.split(observations, self.bounds[1:-1], axis=1)
        each = zip(self.encoders, weights["images"], self.images, parts[1::2], strict=True)
        images = [encoder(w, to_channels_last(part, x)) for encoder, w, part, x in each]
        others = [x.astype(images[0].dtype) for x in parts[::2]]
        return features(weights["linear"], mx.concatenate([*images, *others], axis=1))


def to_channels_last(part: ImageSlice, x: mx.array) -> mx.array:
    """Return an image's columns (n, size) in the order height, width, channel."""
    if not part.channels_first:
        return x
    height, width, channels = part.shape
    return x.reshape(-1, channels, height, width).transpose(0, 2, 3, 1).reshape(x.shape)


def make(spec: EnvSpec, hidden: int, dialect: str, activation: str) -> Combined:
    """Return the encoder for an environment's parts; all dialects have the same."""
    if not spec.image_parts:
        raise UserError(
            f"torch.encoder {NAME} needs images among the parts of a Dict or Tuple;"
            f" {spec.name} has none",
            "auto",
        )
    return Combined(spec.observation_size, spec.image_parts, hidden)


FORMS = {Combined: EncoderFacts(NAME)}
