"""Train in mixed precision: fp32 weights and optimizer, 16-bit activations and their gradients.

Weights are cast inside the differentiated function, so their gradients are fp32. Recurrent states,
log-probabilities, losses and advantages are fp32.

fp16 has 5 bits of exponent, so gradients below 6e-8 vanish. Therefore the loss is multiplied by a
scale, a power of two, and gradients are divided by it. The scale is halved if a gradient overflows,
and doubled after ``GROWTH_INTERVAL`` minibatches without overflow. bf16 has the range of fp32 and
needs no scale.

In any precision a minibatch whose loss or gradient isn't finite is skipped and counted.
``MAX_SKIPPED_IN_A_ROW`` skipped minibatches in a row end the run with an error.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.ops.gpu.launch import launch
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.pack import pack_arrays
from puffer_mlx.system.plain_functions import record

DTYPES = {"fp32": mx.float32, "bf16": mx.bfloat16, "fp16": mx.float16}

FIRST_SCALE = 65536.0
SMALLEST_SCALE = 1.0
LARGEST_SCALE = 2.0**24
GROWTH_INTERVAL = 200  # minibatches
MAX_SKIPPED_IN_A_ROW = 10  # minibatches
# Counters of minibatches, explained in ``first_scaler``. Checkpoints contain these names.
COUNTER_NAMES = "good", "skipped", "in_a_row", "longest"

Scaler = dict[str, mx.array]


def cast_weights(weights: Any, precision: str) -> Any:
    """Cast a policy's float32 weights to a precision. fp32 returns the same arrays."""
    if precision == "fp32":
        return weights
    dtype = DTYPES[precision]
    return tree_map(lambda w: w.astype(dtype), weights)


def first_scaler(precision: str) -> Scaler:
    """Return the initial state of loss scaling and of the counters of skipped minibatches.

    Returns:
        Scalar arrays by name. ``scale``: factor of the loss; always 1 except in fp16. ``good``:
        minibatches since one was skipped or the scale changed. ``skipped``: skipped minibatches of
        the run. ``in_a_row``: current number of consecutive skipped minibatches. ``longest``:
        largest value of ``in_a_row``.
    """
    return {
        "scale": mx.array(FIRST_SCALE if precision == "fp16" else 1.0),
        **{name: mx.array(0) for name in COUNTER_NAMES},
    }


def next_scaler(scaler: Scaler, ok: mx.array, precision: str) -> Scaler:
    """Return the state of loss scaling after a minibatch.

    Args:
        scaler: state from ``first_scaler`` or the previous minibatch.
        ok: scalar, false or 0 if the minibatch was skipped.
        precision: ``fp32``, ``bf16`` or ``fp16``.
    """
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


def _count_one_by_one(scaler: Scaler, oks: Sequence[mx.array], precision: str) -> Scaler:
    """Return the state of loss scaling after several minibatches, in plain MLX."""
    for ok in oks:
        scaler = next_scaler(scaler, ok, precision)
    return scaler


def launch_count_minibatches(scaler: Scaler, oks: Sequence[mx.array], precision: str) -> Scaler:
    """Count minibatches like ``count_minibatches``, in one launch on a GPU.

    The kernel doesn't change the loss scale, so fp16 uses plain MLX.
    """
    if precision == "fp16":
        return _count_one_by_one(scaler, oks, precision)
    ok = oks[0].reshape(1) if len(oks) == 1 else pack_arrays(oks)[0]
    inputs = {name: scaler[name].reshape(1) for name in COUNTER_NAMES}
    inputs |= {"ok": ok, "sizes": {"K": len(oks)}}
    path = Path(__file__).with_name("count_minibatches.metal.h")
    shapes = {f"next_{name}": () for name in COUNTER_NAMES}
    counts = launch(path, "count_minibatches", inputs, shapes, threads=1)
    return {"scale": scaler["scale"], **dict(zip(COUNTER_NAMES, counts, strict=True))}


@partial(Implementation, name="the count of minibatches", gpu=launch_count_minibatches)
def count_minibatches(scaler: Scaler, oks: Sequence[mx.array], precision: str) -> Scaler:
    """Return the state of loss scaling and of the counters after several minibatches.

    A GPU has a kernel for this, because MLX took 2 to 4 s on CUDA to compile each kernel of this
    loop, and compiles new ones for another number of minibatches.

    Args:
        scaler: state before the minibatches, from ``first_scaler`` or an earlier call.
        oks: a scalar for each minibatch, false or 0 if the minibatch was skipped.
        precision: ``fp32``, ``bf16`` or ``fp16``.
    """
    return _count_one_by_one(scaler, oks, precision)


record(__name__)
