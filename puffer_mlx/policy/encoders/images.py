"""Shared by the encoders of images, upstream's ``NatureEncoder`` and ``ImpalaEncoder``.

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

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops import relu
from puffer_mlx.ops.linear import linear
from puffer_mlx.spec import EnvSpec

Shape = tuple[int, ...]  # of an image: height, width, channels
Layer = dict[str, mx.array]  # weight, and bias (O,)


def for_bytes(first: Layer, images: mx.array) -> tuple[Layer, mx.array]:
    """The first layer and its images, for pixels from 0 to 255.

    Dividing the weights is less than dividing the pixels. But float16 would lose digits of weights
    that small; so with 16-bit weights both sides share the division, the pixels' part being exact.
    """
    weight = first["weight"]
    if weight.dtype == mx.float32:
        return {**first, "weight": weight / 255}, images
    return {**first, "weight": weight * (256 / 255)}, images.astype(weight.dtype) / 256


def features(last: Layer, images: mx.array) -> mx.array:
    """The last layer: (n, height, width, channels) -> (n, H)."""
    return relu(linear(images.reshape(len(images), -1), last["weight"], last["bias"]))


def image_shape(spec: EnvSpec, name: str) -> Shape:
    """The shape of an environment's images.

    Raises:
        UserError: it shows none, which the encoder ``name`` needs.
    """
    if not spec.observation_shape:
        fault = f"{spec.observation_size} numbers without a shape"
        hint = "DefaultEncoder or auto; in C MY_OBS_SHAPE of binding.c says a shape"
        if spec.image_parts:
            fault, hint = "images among other parts", "CombinedEncoder, or auto"
        raise UserError(f"torch.encoder {name} needs images; {spec.name} has {fault}", hint)
    return spec.observation_shape
