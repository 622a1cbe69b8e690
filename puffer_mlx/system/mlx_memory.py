"""Memory that MLX uses: how much freed memory it keeps, and where CPU and GPU share some.

CUDA only: memory that the CPU writes and the GPU reads stays at the host. MLX moves a buffer that
the host touches into managed memory, whose pages then wander between CPU and GPU at every change of
the reader. A rollout changes the reader at every step. Told to leave the pages at the host and map
them for the GPU, the driver moves nothing (measurement: ``benchmarks/RESULTS.md``).
"""

import ctypes
import functools

import mlx.core as mx
import psutil

CPU_DEFAULT = 32 << 20  # bytes: MLX 0.32's own limit on a CPU
BYTES = 2 << 30
METAL_SHARE = 4  # on Metal at least BYTES, and at most this part of the machine's memory
_PREFERRED_LOCATION, _ACCESSED_BY = 3, 5  # cudaMemoryAdvise
_DEVICE, _HOST = 1, 2  # cudaMemLocationType


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


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


@functools.cache
def _advise():
    """CUDA 13's cudaMemAdvise, or None; CUDA 12's has another signature, and there pages wander."""
    if not mx.cuda.is_available():
        return None
    try:
        function = ctypes.CDLL("libcudart.so.13").cudaMemAdvise
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, _Location]
    return function


def keep_on_host(address: int, nbytes: int) -> None:
    """Advise the driver about an MLX array's host memory; harmless where it doesn't apply."""
    advise = _advise()
    if advise is not None and mx.default_device() == mx.gpu:
        advise(address, nbytes, _PREFERRED_LOCATION, _Location(_HOST, 0))
        advise(address, nbytes, _ACCESSED_BY, _Location(_DEVICE, 0))
