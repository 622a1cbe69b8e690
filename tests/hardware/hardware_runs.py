"""Items that check devices, memory and captures."""

import os
import statistics
import tempfile
import time
from pathlib import Path

import mlx.core as mx
import numpy as np

from puffer_mlx.check.gpu.runs import OVERLAP
from puffer_mlx.check.gpu.tools import (
    at_most,
    need_gpu,
    require,
    trainer,
)
from puffer_mlx.check.items import Skipped
from puffer_mlx.profiling.metal_capture import CAPTURE_VARIABLE, WARMUP_EPOCHS, MetalCapture
from puffer_mlx.profiling.phases import PROFILE_EVERY

GROWTH = 1 << 20  # bytes, over a run
NBYTES = (4, 2**16, 2**21)


# ---- devices -----------------------------------------------------------------------------------


def round_trip(quick: bool) -> str:
    """Check that arrays are unchanged after the way to the GPU and back.

    Tests one graph and several.
    """
    need_gpu()
    times = []
    for nbytes in NBYTES:
        numbers = np.arange(nbytes // 4, dtype=np.float32)
        for together in (False, True):
            for _ in range(5):
                began = time.perf_counter()
                sent = mx.add(mx.array(numbers), 1.0, stream=mx.cpu)
                if not together:  # CUDA: a GPU never sees the end of a CPU's async_eval
                    mx.eval(sent)
                doubled = mx.multiply(sent, 2.0, stream=mx.gpu)
                if not together:
                    mx.eval(doubled)
                back = np.array(mx.subtract(doubled, 3.0, stream=mx.cpu))
                times.append(time.perf_counter() - began)
            right = np.array_equal(back, numbers * 2 - 1)
            require(right, f"{nbytes} bytes came back changed")
    last = 1e6 * statistics.median(times[-5:])
    return f"right; {NBYTES[-1] >> 20} MiB in one graph takes {last:.0f} us"


# ---- what a run leaves behind ------------------------------------------------------------------


def memory(quick: bool) -> str:
    """Check that epochs free their memory, also if overlapped or profiled."""
    epochs = 60 if quick else 300
    with trainer(*OVERLAP) as run:
        for _ in range(2 * PROFILE_EVERY + 2):
            run.step()
        before = mx.get_active_memory()
        for _ in range(epochs):
            run.step()
        growth = mx.get_active_memory() - before
    return f"{epochs} epochs; {at_most('bytes left behind', growth, GROWTH)}"


def capture(quick: bool) -> str:
    """Check that Metal captures the GPU commands of an epoch for Xcode."""
    if not mx.metal.is_available():
        raise Skipped("captures are Metal's")
    if os.environ.get(CAPTURE_VARIABLE) != "1":
        raise Skipped(f"{CAPTURE_VARIABLE}=1 python tests/hardware --only capture")
    with tempfile.TemporaryDirectory() as folder, trainer() as run:
        taken = MetalCapture(Path(folder) / "check.gputrace")
        try:
            for _ in range(WARMUP_EPOCHS + 1):
                taken.begin_epoch(run.epoch)
                run.step()
                taken.end_epoch()
        finally:
            taken.close()
        require(taken.path.exists(), "no capture was written")
        files = [path for path in (taken.path, *taken.path.rglob("*")) if path.is_file()]
        return f"{sum(path.stat().st_size for path in files) / 2**20:.0f} MiB"
