"""GELU on a GPU: ``gelu.metal.h``, with the arguments of the CPU extension."""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import launch, numbers

TEXT = Path(__file__).with_name("gelu.metal.h")


def gelu_forward(x: mx.array) -> mx.array:
    """Exact GELU x Phi(x), elementwise: any shape."""
    return launch(TEXT, "gelu_forward", [x, numbers(x.size)], [x.shape], x.size)[0]


def gelu_backward(x: mx.array, dy: mx.array) -> mx.array:
    """Gradient of ``gelu_forward`` for dL/dy = ``dy``, both of one shape."""
    return launch(TEXT, "gelu_backward", [x, dy, numbers(x.size)], [x.shape], x.size)[0]
