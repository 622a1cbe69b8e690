"""Advantages on a GPU: ``discount.metal.h``, with the arguments of the CPU extension."""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import launch

TEXT = Path(__file__).with_name("discount.metal.h")


def discount(delta: mx.array, decay: mx.array) -> mx.array:
    """Backward recursion of ``ops.discount``: (T - 1, N) twice -> (T, N), float32."""
    M, N = delta.shape
    shapes = {"adv": (M + 1, N)}
    return launch(TEXT, "discount", {"delta": delta, "decay": decay}, shapes, N, M=M, N=N)[0]
