"""Encoder of observations that combine images and other values, in ONNX. PufferLib has none."""

from itertools import pairwise
from typing import Any

from puffer_mlx.export.encoders import EncoderExports
from puffer_mlx.export.encoders.impala import EXPORTS as IMPALA
from puffer_mlx.export.encoders.nature import EXPORTS as NATURE
from puffer_mlx.policy.encoders.combined import Combined


def _onnx(graph: Any, encoder: Combined, x: str) -> str:
    sizes = [stop - start for start, stop in pairwise(encoder.bounds)]
    slices = iter(graph.split(x, 1, [size for size in sizes if size]))
    columns_by_entry = [next(slices) if size else "" for size in sizes]
    features = []
    for i, (image, entry) in enumerate(zip(encoder.encoders, encoder.images, strict=True)):
        x = columns_by_entry[1 + 2 * i]
        if entry.channels_first:
            height, width, channels = entry.shape
            x = graph("Reshape", x, [0, channels, height, width])
            x = graph("Flatten", graph("Transpose", x, perm=[0, 2, 3, 1]))
        with graph.with_encoder_prefix(f"encoder.images.{i}."):
            features.append((NATURE | IMPALA)[type(image)].onnx(graph, image, x))  # type: ignore
    features += [columns for columns in columns_by_entry[::2] if columns]
    return graph("Relu", graph.linear(graph("Concat", *features, axis=1), "encoder.linear"))


EXPORTS = {Combined: EncoderExports(_onnx, name_prefix="images.")}
