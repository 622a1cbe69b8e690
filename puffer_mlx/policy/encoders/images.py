"""Functions that the image encoders share: PufferLib's ``NatureEncoder`` and ``ImpalaEncoder``.

Observations are flat (n, height * width * channels), in the order height, width, channel, and are
divided by 255. Convolution weights have MLX's layout (O, kh, kw, I). The output of the last
convolution is flattened in the same order. With 16-bit weights a GPU computes in 16 bits, a CPU in
float32.

All devices use the same plain MLX functions, which are fast on MLX's CPU backend. The table
compares ways to compute them, in milliseconds of a compiled forward pass, and of a forward and a
backward pass (gradients of the weights), for 36x36x1 images and 64 features (2 cores of an AMD Zen
5; OpenBLAS; best of 3):

| n images | computation | forward | both passes | remark |
| --- | --- | --- | --- | --- |
| Nature, 1024 | ``mx.conv2d`` with strides | 24 | 540 | MLX computes its gradient in a slow loop |
| | space to depth, ``mx.conv2d`` | 28 | 63 | |
| | space to depth, one product of patches | 21 | 40 | used |
| Nature, 4096 | space to depth, one product of patches | 103 | 214 | used |
| Impala, 256 | ``mlx.nn.MaxPool2d`` | 149 | 741 | MLX computes its gradient with a scatter |
| | maxima of ``mx.split`` | 151 | 428 | used |
"""

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops import relu
from puffer_mlx.ops.linear import linear
from puffer_mlx.spec import EnvSpec

Shape = tuple[int, ...]  # height, width and channels of an image
LayerWeights = dict[str, mx.array]  # a layer's weight, and bias (O,)


def scale_pixels(first: LayerWeights, images: mx.array) -> tuple[LayerWeights, mx.array]:
    """Let an image encoder's first layer divide pixels by 255, by scaling its weight or the images.

    Dividing weights is faster than dividing pixels, but small weights lose digits in float16. With
    16-bit weights, pixels are therefore divided by 256, which is exact, and weights are multiplied
    by 256 / 255.

    Returns:
        The scaled layer and images.
    """
    weight = first["weight"]
    if weight.dtype == mx.float32:
        return {**first, "weight": weight / 255}, images
    return {**first, "weight": weight * (256 / 255)}, images.astype(weight.dtype) / 256


def compute_features(layer: LayerWeights, x: mx.array) -> mx.array:
    """Compute an image encoder's last layer, linear with ReLU: flattened x (n, ...) -> (n, H)."""
    return relu(linear(x.reshape(len(x), -1), layer["weight"], layer["bias"]))


def image_shape(spec: EnvSpec, name: str) -> Shape:
    """Return the shape of an environment's images.

    Args:
        spec: Observations and actions of the environment.
        name: Name of the encoder in the error message.

    Raises:
        UserError: If observations aren't images.
    """
    if not spec.observation_shape:
        observations = f"{spec.observation_size} numbers without a shape"
        hint = "DefaultEncoder or auto; in C, set MY_OBS_SHAPE in binding.c"
        if spec.image_parts:
            observations = "images among other parts"
            hint = "CombinedEncoder, or auto"
        raise UserError(f"torch.encoder {name} needs images; {spec.name} has {observations}", hint)
    return spec.observation_shape
