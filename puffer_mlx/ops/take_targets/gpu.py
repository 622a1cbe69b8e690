"""A gather of targets on a GPU: ``take_targets.metal.h``."""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import launch, numbers

TEXT = Path(__file__).with_name("take_targets.metal.h")


def take_targets(
    logprobs: mx.array,
    values: mx.array,
    adv: mx.array,
    finals: mx.array | None,
    rows: mx.array,
    weights: mx.array,
) -> tuple[mx.array, ...]:
    """``ops.take_targets`` in one launch."""
    (T, N), S = adv.shape, rows.size
    sizes, finals = numbers(T, S, N, int(finals is not None)), adv if finals is None else finals
    arrays = [logprobs, values, adv, finals, rows, weights, sizes]
    return tuple(launch(TEXT, "take_targets", arrays, [(T * S,)] * 4, T * S))
