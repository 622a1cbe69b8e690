"""Half of each number."""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.choice import fused
from puffer_mlx.ops.gpu.launch import launch

TEXT = Path(__file__).with_name("halve.metal.h")


def launch_halve(x):
    return launch(TEXT, "halve", {"x": x}, {"y": x.shape}, x.size, N=x.size)[0]


@fused("one pass", test="", cost="", on_gpu=launch_halve, on_cpu="halve")
def halve(x: mx.array) -> mx.array:
    return x * 0.5
