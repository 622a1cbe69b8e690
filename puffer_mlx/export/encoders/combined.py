"""Encoder of observations that combine images and other values, in ONNX.

PufferLib has no such encoder, so there is no PyTorch class.
"""

from itertools import pairwise
from typing import Any

from puffer_mlx.export.encoders import EncoderExports
from puffer_mlx.export.encoders.impala import EXPORTS as IMPALA
from puffer_mlx.export.encoders.nature import EXPORTS as NATURE
from puffer_mlx.policy.encoders.combined import Combined


def _onnx(graph: Any, encoder: Combined, x: str) -> str:
    """Add the encoder to an ONNX graph. Returns the name of its features.

    Args:
        graph: ``onnx_graph.Graph`` of the policy.
        encoder: The encoder.
        x: Name of the observations (n, D).
    """
    sizes = [stop - start for start, stop in pairwise(encoder.bounds)]
    slices = iter(graph.split(x, 1, [size for size in sizes if size]))
    entries = [next(slices) if size else "" for size in sizes]  # names, alternating: other, image
    other_entries = entries[::2]
    image_entries = entries[1::2]
    features = []
    for i, (image_encoder, image) in enumerate(zip(encoder.encoders, encoder.images, strict=True)):
        pixels = image_entries[i]
        if image.channels_first:
            height, width, channels = image.shape
            pixels = graph("Reshape", pixels, [0, channels, height, width])
            pixels = graph("Flatten", graph("Transpose", pixels, perm=[0, 2, 3, 1]))
        add_encoder: Any = (NATURE | IMPALA)[type(image_encoder)].onnx
        with graph.with_encoder_prefix(f"encoder.images.{i}."):
            features.append(add_encoder(graph, image_encoder, pixels))
    features += [entry for entry in other_entries if entry]
    return graph("Relu", graph.linear(graph("Concat", *features, axis=1), "encoder.linear"))


EXPORTS = {Combined: EncoderExports(_onnx, name_prefix="images.")}
