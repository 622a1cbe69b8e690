"""The next state of loss scaling on a GPU: ``scaler.metal.h``, one launch."""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import launch, numbers

TEXT = Path(__file__).with_name("scaler.metal.h")


def next_scaler(
    scaler: dict[str, mx.array], ok: mx.array, scaled: bool, interval: int, limits: tuple
) -> dict[str, mx.array]:
    """See ``precision.next_scaler``.

    Args:
        scaler: the state before.
        ok: whether the minibatch counted: a scalar, a bool or a number that is 0 or 1.
        scaled: whether there is a scale that changes.
        interval: minibatches after which it grows.
        limits: its smallest and its largest value.
    """
    given = {name: array.reshape(1) for name, array in {**scaler, "ok": ok}.items()}
    settings = {"limits": numbers(*limits), "growth": numbers(int(scaled), interval)}
    shapes = {f"next_{name}": () for name in scaler}
    outputs = launch(TEXT, "next_scaler", {**given, **settings}, shapes, threads=1)
    names = ("scale", "good", "skipped", "in_a_row", "longest")
    return dict(zip(names, outputs, strict=True))
