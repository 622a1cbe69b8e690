"""The encoder of several parts in ONNX; PufferLib has no such class."""

from itertools import pairwise
from typing import Any

from puffer_mlx.export.encoders import EncoderForms
from puffer_mlx.export.encoders.impala import FORMS as IMPALA
from puffer_mlx.export.encoders.nature import FORMS as NATURE
from puffer_mlx.policy.encoders.combined import Combined


def _onnx(graph: Any, encoder: Combined, x: str) -> str:
    sizes = [stop - start for start, stop in pairwise(encoder.bounds)]
    named = graph.split(x, 1, [size for size in sizes if size])
    parts = [named.pop(0) if size else "" for size in sizes]
    columns = []
    for i, (image, part) in enumerate(zip(encoder.encoders, encoder.images, strict=True)):
        x = parts[1 + 2 * i]
        if part.channels_first:
            height, width, channels = part.shape
            x = graph("Reshape", x, [0, channels, height, width])
            x = graph("Flatten", graph("Transpose", x, perm=[0, 2, 3, 1]))
        with graph.below(f"encoder.images.{i}."):
            columns.append((NATURE | IMPALA)[type(image)].onnx(graph, image, x))  # type: ignore
    columns += [part for part in parts[::2] if part]
    return graph("Relu", graph.product(graph("Concat", *columns, axis=1), "encoder.linear"))


FORMS = {Combined: EncoderForms(_onnx, mark="images.")}
