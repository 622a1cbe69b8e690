"""How much freed memory MLX keeps for reuse."""

import functools

import mlx.core as mx
import psutil

CPU_DEFAULT = 32 << 20  # bytes: MLX 0.32's own limit on a CPU
BYTES = 2 << 30
METAL_SHARE = 4  # on Metal at least BYTES, and at most this part of the machine's memory


@functools.cache
def choose_cache_limit() -> None:
    """Set the limit of freed buffers that suits training, once in a process.

    MLX's CPU backend keeps 32 MiB, beyond which every temporary array is allocated and page-faulted
    anew: twice the time of a training pass; so here it keeps 2 GiB. On Metal it keeps nearly all
    memory, which is everybody's there: a quarter of it, but 2 GiB at least. With CUDA its limit
    stays.

    A limit that the program set before (``mx.set_cache_limit``) stays on a CPU, and on Metal where
    it is the smaller one. ``Trainer`` and ``evaluate`` call this when they begin.
    """
    before = mx.set_cache_limit(BYTES)
    wanted = before
    if mx.metal.is_available():
        wanted = min(before, max(BYTES, psutil.virtual_memory().total // METAL_SHARE))
    elif before == CPU_DEFAULT:
        wanted = BYTES
    mx.set_cache_limit(wanted)
