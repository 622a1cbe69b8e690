"""Adam with the clip on a GPU: ``adam.metal.h``, after all tensors are packed."""

import math
from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import THREADS, launch, numbers
from puffer_mlx.ops.pack import BLOCK, launch_pack, unpack

TEXT = Path(__file__).with_name("adam.metal.h")
NO_LOGARITHM = -1e30  # of a beta of 0: finite, and e to it is 0


def step(
    weights: list[mx.array],
    grads: list[mx.array],
    momentum: list[mx.array],
    second_moment: list[mx.array],
    steps: mx.array,
    lr: mx.array,
    loss: mx.array,
    max_norm: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
) -> list[mx.array]:
    """One step, with the arguments of the CPU extension's ``adam_step``.

    Returns:
        The new weights, first and second moments, the number of steps, and whether all of it is
        new: 1 or 0, a float32 scalar.
    """
    shapes = tuple(tuple(array.shape) for array in weights)
    packed, squares = launch_pack([*weights, *grads, *momentum, *second_moment], BLOCK)
    flat, blocks = (packed.size // 4,), packed.size // 4 // BLOCK
    logarithms = [math.log(beta) if beta else NO_LOGARITHM for beta in (beta1, beta2)]
    settings = (beta1, beta2, *logarithms, eps, decay, max_norm)
    scalars = [numbers(*map(float, settings)), loss.reshape(1), lr.reshape(1)]
    arrays, outputs = [numbers(blocks), packed, squares, steps.reshape(1), *scalars], [flat] * 3
    threads = blocks * THREADS
    *new, step, ok = launch(TEXT, "adam_step", arrays, [*outputs, (), ()], threads)
    return [*(array for kind in new for array in unpack(kind, shapes, BLOCK)), step, ok]
