"""Encoders of images: upstream's ``NatureEncoder`` and ``ImpalaEncoder``.

Observations are flat (n, height * width * channels), row by row with the channels of a pixel
together, and are divided by 255. Convolution weights are MLX's (O, kh, kw, I); what the last
convolution gives is flattened in the order height, width, channel. With 16-bit weights a GPU keeps
everything in their type, but a CPU computes from end to end in float32.

The forms are plain MLX, the same on every device, and what its CPU backend does fast. Milliseconds
of a compiled forward, and of a forward and backward pass with respect to the weights, of 36x36x1
images and 64 features (2 cores of an AMD Zen 5, nearly idle; OpenBLAS; best of 3):

| | forward | both | |
| --- | --- | --- | --- |
| Nature, n = 1024: ``mx.conv2d`` with strides | 24 | 540 | input gradient: a naive loop |
| space to depth, then ``mx.conv2d`` | 28 | 63 | |
| space to depth, patches, one product | 21 | 40 | ``Nature``; n = 4096: 103 and 214 |
| Impala, n = 256: ``mlx.nn.MaxPool2d`` | 149 | 741 | its gradient scatters |
| maxima of what ``mx.split`` gives | 151 | 428 | ``Impala`` |
"""

import math
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops import linear, plus
from puffer_mlx.ops.low_precision import float32_on_cpu
from puffer_mlx.policy.activations import uniform

Shape = tuple[int, ...]  # of an image: height, width, channels
Layer = dict[str, mx.array]  # weight, and bias (O,)

NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride of each convolution
SMALLEST = 36  # sides of an image, which these leave one place of: ((1 + 2) * 2 + 2) * 4 + 4
IMPALA = (16, 32, 32)  # channels of each block


def _layer(shape: Shape, key: mx.array) -> Layer:
    """A layer's weight (O, ...) and bias (O,), uniform within ±1/sqrt(inputs): torch's default."""
    bound, keys = math.prod(shape[1:]) ** -0.5, mx.random.split(key)
    return {
        "weight": uniform(keys[0], shape, bound),
        "bias": uniform(keys[1], shape[:1], bound),
    }


def _relu(x: mx.array) -> mx.array:
    return mx.maximum(x, 0)


def _for_bytes(layer: Layer, images: mx.array) -> tuple[Layer, mx.array]:
    """The first layer and its images, for pixels from 0 to 255.

    Dividing the weights is less than dividing the pixels. But float16 would lose digits of weights
    that small; so with 16-bit weights both sides share the division, the pixels' part being exact.
    """
    weight = layer["weight"]
    if weight.dtype == mx.float32:
        return {**layer, "weight": weight / 255}, images
    return {**layer, "weight": weight * (256 / 255)}, images.astype(weight.dtype) / 256


def _features(layer: Layer, images: mx.array) -> mx.array:
    """The last layer: (n, height, width, channels) -> (n, H)."""
    return _relu(linear(images.reshape(len(images), -1), layer["weight"], layer["bias"]))


# ---- Nature -------------------------------------------------------------------------------------


def _to_depth(x: mx.array, stride: int) -> mx.array:
    """Each square of stride x stride pixels becomes one pixel: x (n, h, w, c), or weights."""
    n, h, w, c = x.shape
    x = x.reshape(n, h // stride, stride, w // stride, stride * c).transpose(0, 1, 3, 2, 4)
    return x.reshape(n, h // stride, w // stride, stride * stride * c)


def _patches(x: mx.array, size: int) -> mx.array:
    """What a window of size x size sees at each place: (n, h, w, c) -> (n, h', w', size² c)."""
    h, w = x.shape[1] - size + 1, x.shape[2] - size + 1
    if h == w == 1:
        return x.reshape(len(x), 1, 1, -1)
    window = [x[:, i : i + h, j : j + w] for i in range(size) for j in range(size)]
    return mx.concatenate(window, axis=-1)


def _strided(layer: Layer, x: mx.array, stride: int) -> mx.array:
    """A convolution without padding, of a kernel that is a multiple of the stride.

    It equals one of stride 1 after both sides are put to depth, and that is a product.
    """
    weight = layer["weight"]
    O, size = weight.shape[:2]  # noqa: E741
    h, w = ((side - size) // stride * stride + size for side in x.shape[1:3])
    if x.shape[1:3] != (h, w):
        x = x[:, :h, :w]  # the rest has no place in any window
    if stride > 1:
        x, weight = _to_depth(x, stride), _to_depth(weight, stride)
    patches = _patches(x, size // stride)
    flat = patches.reshape(-1, patches.shape[-1])
    return linear(flat, weight.reshape(O, -1), layer["bias"]).reshape(*patches.shape[:3], O)


@dataclass(frozen=True)
class Nature:
    """The network of Mnih et al., "Human-level control through deep reinforcement learning".

    Convolutions of 32 8x8 by 4, 64 4x4 by 2, 64 3x3 by 1, and a product, with ReLU after each.

    Args:
        shape: height, width, channels; sides of at least 36.
        hidden: H.
    """

    shape: Shape
    hidden: int

    def __post_init__(self) -> None:
        if min(self.shape[:2]) < SMALLEST:
            raise UserError(
                f"NatureEncoder needs images of at least {SMALLEST}x{SMALLEST},"
                f" got {self.shape[0]}x{self.shape[1]}",
                "choose torch.encoder = ImpalaEncoder",
            )

    def init(self, key: mx.array) -> dict[str, Any]:
        """Convolutions (O, k, k, I), the product's weight (H, F), and biases."""
        *keys, last = mx.random.split(key, len(NATURE) + 1)
        h, w, c = self.shape
        convs = []
        for (channels, size, stride), k in zip(NATURE, keys, strict=True):
            convs.append(_layer((channels, size, size, c), k))
            h, w, c = (h - size) // stride + 1, (w - size) // stride + 1, channels
        return {"convs": convs, "linear": _layer((self.hidden, h * w * c), last)}

    def __call__(self, weights: dict[str, Any], observations: mx.array) -> mx.array:
        """Observations (n, D), any dtype -> features (n, H) of the weights' dtype."""
        return float32_on_cpu(self._encode)(weights, observations)

    def _encode(self, weights: dict[str, Any], observations: mx.array) -> mx.array:
        first, *rest = weights["convs"]
        first, x = _for_bytes(first, observations.reshape(-1, *self.shape))
        for layer, (_, _, stride) in zip([first, *rest], NATURE, strict=True):
            x = _relu(_strided(layer, x, stride))
        return _features(weights["linear"], x)


# ---- Impala -------------------------------------------------------------------------------------


def _same(layer: Layer, x: mx.array) -> mx.array:
    """A 3x3 convolution that keeps height and width."""
    return plus(mx.conv2d(x, layer["weight"], padding=1), layer["bias"])


def _halve(x: mx.array, axis: int) -> mx.array:
    """Maxima of windows of 3 by 2 along an axis, padded by 1: size m -> ceil(m / 2).

    Window i is 2i - 1, 2i, 2i + 1: an odd place, an even one and an odd one. Splitting in two keeps
    the gradient to a concatenation; that of strided slices is a full array for each.
    """
    m = x.shape[axis]

    def pad(x: mx.array, before: int, after: int) -> mx.array:
        widths = [(before, after) if a == axis else (0, 0) for a in range(x.ndim)]
        return mx.pad(x, widths, constant_values=-mx.inf)

    if m % 2:
        x = pad(x, 0, 1)
    pairs = x.reshape(*x.shape[:axis], -1, 2, *x.shape[axis + 1 :])
    even, odd = (part.squeeze(axis + 1) for part in mx.split(pairs, 2, axis=axis + 1))
    before = mx.split(pad(odd, 1, 0), [odd.shape[axis]], axis=axis)[0]
    return mx.maximum(mx.maximum(even, odd), before)


def _residual(block: dict[str, Layer], x: mx.array) -> mx.array:
    return x + _same(block["conv1"], _relu(_same(block["conv0"], _relu(x))))


def _block(inputs: int, channels: int, key: mx.array) -> dict[str, Any]:
    """Fresh weights of one of Impala's three blocks."""
    first, *keys = mx.random.split(key, 5)
    same = [_layer((channels, 3, 3, channels), k) for k in keys]
    return {
        "conv": _layer((channels, 3, 3, inputs), first),
        "res0": {"conv0": same[0], "conv1": same[1]},
        "res1": {"conv0": same[2], "conv1": same[3]},
    }


@dataclass(frozen=True)
class Impala:
    """The network of Espeholt et al., "IMPALA", without its recurrent part.

    Three times a 3x3 convolution, 3x3 max-pooling by 2 and two residual blocks, with 16, 32 and 32
    channels; then ReLU, a product, and ReLU.

    Args:
        shape: height, width, channels.
        hidden: H.
    """

    shape: Shape
    hidden: int

    def init(self, key: mx.array) -> dict[str, Any]:
        """Convolutions (O, 3, 3, I), the product's weight (H, F), and biases."""
        *keys, last = mx.random.split(key, len(IMPALA) + 1)
        h, w, c = self.shape
        blocks = []
        for channels, k in zip(IMPALA, keys, strict=True):
            blocks.append(_block(c, channels, k))
            h, w, c = -(-h // 2), -(-w // 2), channels
        return {"blocks": blocks, "linear": _layer((self.hidden, h * w * c), last)}

    def __call__(self, weights: dict[str, Any], observations: mx.array) -> mx.array:
        """Observations (n, D), any dtype -> features (n, H) of the weights' dtype."""
        return float32_on_cpu(self._encode)(weights, observations)

    def _encode(self, weights: dict[str, Any], observations: mx.array) -> mx.array:
        first, *rest = weights["blocks"]
        conv, x = _for_bytes(first["conv"], observations.reshape(-1, *self.shape))
        x = x.astype(conv["weight"].dtype)
        for block in ({**first, "conv": conv}, *rest):
            x = _same(block["conv"], x)
            x = _halve(_halve(x, 1), 2)
            x = _residual(block["res1"], _residual(block["res0"], x))
        return _features(weights["linear"], _relu(x))
