"""Items: CPU and GPU give the same, whichever acts and whichever trains."""

import statistics
import time

import mlx.core as mx
import numpy as np

from puffer_mlx.check.gpu.tools import (
    Effort,
    apart,
    at_most,
    flat,
    need_gpu,
    on,
    require,
    trainer,
    unit,
)
from puffer_mlx.ppo.precision import DTYPES
from puffer_mlx.training.trainer import Logs

LOSSES = 1e-2  # of a loss or 1: products in TF32, and minibatches that may differ by a row
# How far a first minibatch's probability ratios may be from 1, of ``unit``; but 1e-5 at least.
RATIOS = 8
NBYTES = (4, 2**16, 2**21)


def round_trip(effort: Effort) -> str:
    """Arrays go from the CPU to the GPU and back unharmed, each evaluated or all in one graph."""
    need_gpu()
    times = []
    for nbytes in NBYTES:
        numbers = np.arange(nbytes // 4, dtype=np.float32)
        for together in (False, True):
            for _ in range(5):
                began = time.perf_counter()
                made = mx.add(mx.array(numbers), 1.0, stream=mx.cpu)
                if not together:  # CUDA: a GPU never sees the end of a CPU's async_eval
                    mx.eval(made)
                doubled = mx.multiply(made, 2.0, stream=mx.gpu)
                if not together:
                    mx.eval(doubled)
                found = np.array(mx.subtract(doubled, 3.0, stream=mx.cpu))
                times.append(time.perf_counter() - began)
            right = np.array_equal(found, numbers * 2 - 1)
            require(right, f"{nbytes} bytes came back changed")
    last = 1e6 * statistics.median(times[-5:])
    return f"right; {NBYTES[-1] >> 20} MiB in one graph takes {last:.0f} us"


def where_to_act(effort: Effort) -> str:
    """``train.rollout_device auto`` measures both devices and says what it found."""
    need_gpu()
    with trainer("--train.rollout-device", "auto") as made:
        require(bool(made.placement.reason), "no reason was given")
        return made.placement.reason


def same_epoch(effort: Effort) -> str:
    """An epoch on the GPU, from the same weights and the same rollout, has the CPU's losses."""
    need_gpu()
    with on(mx.Device(mx.cpu)), trainer() as made:
        weights, expected = made.weights, [made.step()]
        buffer = made.collector.buffer
        seen = np.array(buffer.observations), np.array(buffer.actions)
        after = flat(made.weights)
    with trainer(weights=weights) as made:
        found = [made.step()]
        buffer = made.collector.buffer
        for name, one in zip(("observations", "actions"), seen, strict=True):
            require(np.array_equal(np.array(getattr(buffer, name)), one), f"other {name}")
        moved = float(np.abs(flat(made.weights) - after).max())
    return f"{at_most('losses', apart(found, expected), LOSSES)}; weights differ by {moved:.1g}"


def first_ratios(effort: Effort) -> str:
    """Before anything is learned, old and new log-probabilities are the same, wherever it acted."""
    places = ["cpu"] if mx.default_device() == mx.cpu else ["cpu", "gpu"]
    worst = (0.0, "", 1.0)
    for place in places:
        for precision in DTYPES:
            logs: Logs = {}
            with trainer("--train.rollout-device", place, "--train.precision", precision) as made:
                for _ in range(2):
                    logs = made.step()
            what = f"ratios of {precision}, acting on the {place.upper()}"
            error = logs.get("loss/first_ratio_error", float("nan"))
            bound = max(RATIOS * unit(precision), 1e-5)
            at_most(what, error, bound)
            worst = max(worst, (error / bound, what, bound))
    return at_most(worst[1], worst[0] * worst[2], worst[2])
