"""The combined encoder's other forms: see ``encoders/forms.py``.

Tensors: those of each image's encoder below ``images.{i}.``, and ``linear.*``. PufferLib has no
such class.
"""

from itertools import pairwise
from typing import Any

from puffer_mlx.policy.encoders.combined import NAME
from puffer_mlx.policy.encoders.combined.encoder import Combined
from puffer_mlx.policy.encoders.forms import Forms
from puffer_mlx.policy.encoders.impala.forms import FORMS as IMPALA
from puffer_mlx.policy.encoders.nature.forms import FORMS as NATURE


def _onnx(graph: Any, encoder: Combined, x: str) -> str:
    sizes = [stop - start for start, stop in pairwise(encoder.bounds)]
    named = graph.split(x, 1, [size for size in sizes if size])
    parts = [named.pop(0) if size else "" for size in sizes]
    found = []
    for i, (own, part) in enumerate(zip(encoder.encoders, encoder.images, strict=True)):
        x = parts[1 + 2 * i]
        if part.channels_first:
            height, width, channels = part.shape
            x = graph("Reshape", x, [0, channels, height, width])
            x = graph("Flatten", graph("Transpose", x, perm=[0, 2, 3, 1]))
        with graph.below(f"encoder.images.{i}."):
            found.append((NATURE | IMPALA)[type(own)].onnx(graph, own, x))  # type: ignore
    found += [part for part in parts[::2] if part]
    return graph("Relu", graph.product(graph("Concat", *found, axis=1), "encoder.linear"))


FORMS = {Combined: Forms(NAME, _onnx, mark="images.")}
