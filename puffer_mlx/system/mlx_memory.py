"""MLX's memory: limit of the cache of freed buffers, and host memory that a GPU reads.

CUDA only: memory that the CPU writes and the GPU reads should stay on the host. MLX moves a buffer
that the host touches into managed memory, whose pages migrate between CPU and GPU whenever the
reader changes. In a rollout that is every step. The driver migrates nothing if it is advised to
leave the pages on the host and map them for the GPU (measurement: ``benchmarks/RESULTS.md``).
"""

import ctypes
import functools

import mlx.core as mx
import psutil

CPU_DEFAULT = 32 << 20  # bytes: MLX 0.32's default limit on a CPU
BYTES = 2 << 30
METAL_SHARE = 4  # Metal: at least BYTES, at most 1/4 of the machine's memory
_PREFERRED_LOCATION, _ACCESSED_BY = 3, 5  # cudaMemoryAdvise
_DEVICE, _HOST = 1, 2  # cudaMemLocationType


@functools.cache
def choose_cache_limit() -> None:
    """Set the cache limit of freed buffers for training, once in a process.

    | device | MLX's limit | limit set here |
    | --- | --- | --- |
    | CPU | 32 MiB | 2 GiB |
    | Metal | nearly all memory | a quarter of the memory, at least 2 GiB |
    | CUDA | MLX's | unchanged |

    With 32 MiB every temporary array is allocated and page-faulted again, which doubles the time of
    a training pass. On Metal all programs share the memory.

    A limit that the program set before (``mx.set_cache_limit``) stays on a CPU, and on Metal if it
    is smaller. ``Trainer`` and ``evaluate`` call this when they begin.
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
    """Return CUDA 13's cudaMemAdvise, or None. CUDA 12's has another signature and isn't used."""
    if not mx.cuda.is_available():
        return None
    try:
        function = ctypes.CDLL("libcudart.so.13").cudaMemAdvise
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, _Location]
    return function


def keep_on_host(address: int, nbytes: int) -> None:
    """Advise the driver to leave an MLX array on the host; no effect without CUDA 13."""
    advise = _advise()
    if advise is not None and mx.default_device() == mx.gpu:
        advise(address, nbytes, _PREFERRED_LOCATION, _Location(_HOST, 0))
        advise(address, nbytes, _ACCESSED_BY, _Location(_DEVICE, 0))
