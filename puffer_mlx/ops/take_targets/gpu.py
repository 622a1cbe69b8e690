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
    arrays = {
        "logprobs": logprobs,
        "values": values,
        "adv": adv,
        "finals": adv if finals is None else finals,
        "rows": rows,
        "weights": weights,
        "sizes": numbers(T, S, N, int(finals is not None)),
    }
    names = "old_logprob", "old_value", "taken_adv", "weight"
    return tuple(launch(TEXT, "take_targets", arrays, dict.fromkeys(names, (T * S,)), T * S))
