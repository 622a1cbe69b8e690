"""Mixed precision: fp32 weights and optimizer, activations and their gradients in a lower type.

Weights are cast inside the differentiated function, all together, so gradients come back in fp32.
What needs range or digits stays fp32: recurrent states, log-probabilities, losses, advantages, the
optimizer.

fp16 has 5 bits of exponent: gradients below 6e-8 vanish. So its loss is scaled up and the gradients
down again, by a power of two that is halved whenever a gradient overflows, and doubled after
``GROWTH_INTERVAL`` minibatches without one. bf16 has the range of fp32 and needs no scale.

A minibatch whose loss or gradient isn't finite changes nothing, in any precision, and is counted;
``TOLERATED`` of them in a row are an error.
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
SMALLEST_SCALE, LARGEST_SCALE = 1.0, 2.0**24
GROWTH_INTERVAL = 200  # minibatches; an epoch of Breakout has five
TOLERATED = 10  # skipped minibatches in a row

Scaler = dict[str, mx.array]


def lower(weights: Any, precision: str) -> Any:
    """Weights in the type that the policy computes in; fp32 ones are returned as they are."""
    if precision == "fp32":
        return weights
    dtype = DTYPES[precision]
    if cast.choose() is None:
        return tree_map(lambda w: w.astype(dtype), weights)
    low = iter(TOGETHER[dtype](*leaves(weights)))
    return tree_map(lambda _: next(low), weights)


def _together(dtype: mx.Dtype) -> Any:
    """Casts of all weights in one launch, and of their gradients."""

    @mx.custom_function
    def rounded(*arrays: mx.array) -> tuple[mx.array, ...]:
        return tuple(cast(arrays, dtype))

    @rounded.vjp
    def gradients(primals: Any, cotangents: Any, outputs: Any) -> tuple[mx.array, ...]:
        return tuple(cast(cotangents, mx.float32))

    return rounded


TOGETHER = {dtype: _together(dtype) for dtype in LOW}


def first_scaler(precision: str) -> Scaler:
    """The state of loss scaling, scalar arrays.

    Returns:
        ``scale``: what the loss is multiplied by, 1 but in fp16. ``good``: minibatches since it
        changed. ``skipped``: minibatches that were skipped, over the whole run. ``in_a_row``: the
        last ones that were. ``longest``: the most of them in a row.
    """
    return {
        "scale": mx.array(FIRST_SCALE if precision == "fp16" else 1.0),
        **{name: mx.array(0) for name in ("good", "skipped", "in_a_row", "longest")},
    }


def next_scaler(scaler: Scaler, ok: mx.array, precision: str) -> Scaler:
    """The state after a minibatch that counted (``ok``, a scalar) or was skipped."""
    kernel = COUNT.choose()
    if kernel is not None:
        return kernel(scaler, ok, precision)
    scale, good = scaler["scale"], mx.where(ok, scaler["good"] + 1, 0)
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
    """The state after several minibatches, one after the other."""
    kernel = COUNT.choose()
    if kernel is not None:
        return kernel(scaler, pack(oks)[0], precision)
    for ok in oks:
        scaler = next_scaler(scaler, ok, precision)
    return scaler


def launch_next_scaler(scaler: Scaler, ok: mx.array, precision: str) -> Scaler:
    """``next_scaler`` on a GPU, in one launch; ``ok``: of any minibatches, also numbers 0 or 1."""
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


def choose(ok: mx.array, new: Any, old: Any) -> Any:
    """The tree ``new`` if ``ok``, a scalar, else ``old``."""
    return tree_map(lambda a, b: mx.where(ok, a, b), new, old)


record(__name__)
