"""Mixed precision: fp32 weights and optimizer, 16-bit activations and gradients of activations.

Weights are cast inside the differentiated function, so their gradients are fp32. Recurrent states,
log-probabilities, losses and advantages are fp32.

fp16 has 5 bits of exponent, so gradients below 6e-8 vanish. Therefore the loss is multiplied by a
scale, a power of two, and gradients are divided by it. The scale is halved if a gradient overflows,
and doubled after ``GROWTH_INTERVAL`` minibatches without overflow. bf16 has the range of fp32 and
needs no scale.

In any precision a minibatch whose loss or gradient isn't finite is skipped and counted.
``TOLERATED`` skipped minibatches in a row end the run with an error.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.ops import cast
from puffer_mlx.ops.gpu.launch import launch
from puffer_mlx.ops.implementation import implementation
from puffer_mlx.ops.low_precision import LOW
from puffer_mlx.ops.pack import pack
from puffer_mlx.system.plain_functions import record
from puffer_mlx.trees import leaves

TEXT = Path(__file__).with_name("scaler.metal.h")
DTYPES = {"fp32": mx.float32, "bf16": mx.bfloat16, "fp16": mx.float16}

FIRST_SCALE = 65536.0
SMALLEST_SCALE = 1.0
LARGEST_SCALE = 2.0**24
GROWTH_INTERVAL = 200  # minibatches
TOLERATED = 10  # skipped minibatches in a row

Scaler = dict[str, mx.array]


def lower(weights: Any, precision: str) -> Any:
    """Return a policy's weights in a precision; for fp32 the same arrays."""
    if precision == "fp32":
        return weights
    dtype = DTYPES[precision]
    if cast.choose() is None:
        return tree_map(lambda w: w.astype(dtype), weights)
    low = iter(CASTS[dtype](*leaves(weights)))
    return tree_map(lambda _: next(low), weights)


def _cast_in_one_launch(dtype: mx.Dtype) -> Any:
    """Return a function that casts all weights in one launch, and their gradients in another."""

    @mx.custom_function
    def rounded(*arrays: mx.array) -> tuple[mx.array, ...]:
        return tuple(cast(arrays, dtype))

    @rounded.vjp
    def gradients(primals: Any, cotangents: Any, outputs: Any) -> tuple[mx.array, ...]:
        return tuple(cast(cotangents, mx.float32))

    return rounded


CASTS = {dtype: _cast_in_one_launch(dtype) for dtype in LOW}


def first_scaler(precision: str) -> Scaler:
    """Return the initial state of loss scaling, scalar arrays.

    Returns:
        ``scale``: factor of the loss; always 1 except in fp16. ``good``: minibatches since the last
        skipped one or change of the scale. ``skipped``: skipped minibatches of the run.
        ``in_a_row``: number of consecutive minibatches skipped last. ``longest``: largest value of
        ``in_a_row``.
    """
    return {
        "scale": mx.array(FIRST_SCALE if precision == "fp16" else 1.0),
        **{name: mx.array(0) for name in ("good", "skipped", "in_a_row", "longest")},
    }


def next_scaler(scaler: Scaler, ok: mx.array, precision: str) -> Scaler:
    """Return the state after a minibatch.

    Args:
        scaler: state from ``first_scaler`` or the previous minibatch.
        ok: scalar, false if the minibatch was skipped.
        precision: ``fp32``, ``bf16`` or ``fp16``.
    """
    kernel = COUNT.choose()
    if kernel is not None:
        return kernel(scaler, ok, precision)
    scale = scaler["scale"]
    good = mx.where(ok, scaler["good"] + 1, 0)
    if precision == "fp16":
        grows = good >= GROWTH_INTERVAL
        grown = mx.where(grows, mx.minimum(2 * scale, LARGEST_SCALE), scale)
        scale = mx.where(ok, grown, mx.maximum(0.5 * scale, SMALLEST_SCALE))
        good = mx.where(grows, 0, good)
    in_a_row = mx.where(ok, 0, scaler["in_a_row"] + 1)
    return {
        "scale": scale,
        "good": good,
        "skipped": scaler["skipped"] + mx.where(ok, 0, 1),
        "in_a_row": in_a_row,
        "longest": mx.maximum(scaler["longest"], in_a_row),
    }


def count_all(scaler: Scaler, oks: Sequence[mx.array], precision: str) -> Scaler:
    """Return the state after several minibatches: see ``next_scaler``."""
    kernel = COUNT.choose()
    if kernel is not None:
        return kernel(scaler, pack(oks)[0], precision)
    for ok in oks:
        scaler = next_scaler(scaler, ok, precision)
    return scaler


def launch_next_scaler(scaler: Scaler, ok: mx.array, precision: str) -> Scaler:
    """Compute ``next_scaler`` on a GPU for all minibatches in ``ok`` (bools, or 0 and 1)."""
    inputs: Any = {name: array.reshape(-1) for name, array in {**scaler, "ok": ok}.items()}
    inputs["limits"] = {"smallest": SMALLEST_SCALE, "largest": LARGEST_SCALE}
    growth = {"is_scaled": int(precision == "fp16"), "interval": GROWTH_INTERVAL, "n": ok.size}
    inputs["growth"] = growth
    names = "scale", "good", "skipped", "in_a_row", "longest"
    shapes = {f"next_{name}": () for name in names}
    return dict(zip(names, launch(TEXT, "next_scaler", inputs, shapes, threads=1), strict=True))


COUNT = implementation(
    ("ppo.precision",), "the kernel that counts minibatches", gpu=launch_next_scaler
)


record(__name__)
