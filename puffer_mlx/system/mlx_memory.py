"""Limit MLX's cache of freed buffers, and keep arrays in host memory on CUDA machines.

On CUDA, MLX moves a buffer that the host reads or writes into managed memory. Its pages then
migrate between CPU and GPU whenever the other one uses them, in a rollout at every step.
``keep_on_host`` advises the driver to leave the pages on the host and map them for the GPU, which
prevents the migration (measurement: ``benchmarks/RESULTS.md``).
"""

import ctypes
import functools

import mlx.core as mx
import psutil

MLX_CPU_LIMIT = 32 << 20  # bytes; MLX 0.32's default on a CPU
TRAINING_LIMIT = 2 << 30  # bytes; on Metal the minimum
METAL_DIVISOR = 4  # Metal's limit is the machine's memory divided by this
_PREFERRED_LOCATION, _ACCESSED_BY = 3, 5  # cudaMemoryAdvise
_DEVICE, _HOST = 1, 2  # cudaMemLocationType


@functools.cache
def choose_cache_limit() -> None:
    """Set the limit of MLX's cache of freed buffers for training, once per process.

    | device | MLX's limit | limit set here |
    | --- | --- | --- |
    | CPU | 32 MiB | 2 GiB |
    | Metal | nearly all memory | a quarter of the memory, at least 2 GiB |
    | CUDA | MLX's | unchanged |

    With 32 MiB every temporary array is allocated and page-faulted again, which doubles the time of
    a training pass. On Metal all programs share the memory.

    A limit that the program set earlier (``mx.set_cache_limit``) is kept on a CPU, and on Metal if
    it is smaller. ``Trainer`` and ``evaluate`` call this when they begin.
    """
    previous = mx.set_cache_limit(TRAINING_LIMIT)
    wanted = previous
    if mx.metal.is_available():
        wanted = min(previous, max(TRAINING_LIMIT, psutil.virtual_memory().total // METAL_DIVISOR))
    elif previous == MLX_CPU_LIMIT:
        wanted = TRAINING_LIMIT
    mx.set_cache_limit(wanted)


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


@functools.cache
def _advise():
    """Return CUDA 13's cudaMemAdvise, or None. CUDA 12's has another signature, so isn't used."""
    if not mx.cuda.is_available():
        return None
    try:
        function = ctypes.CDLL("libcudart.so.13").cudaMemAdvise
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, _Location]
    return function


def keep_on_host(address: int, nbytes: int) -> None:
    """Advise the CUDA driver to leave an MLX array in host memory. Without CUDA 13, do nothing.

    Args:
        address: Address of the array's first byte.
        nbytes: Size of the array in bytes.
    """
    advise = _advise()
    if advise is not None and mx.default_device() == mx.gpu:
        advise(address, nbytes, _PREFERRED_LOCATION, _Location(_HOST, 0))
        advise(address, nbytes, _ACCESSED_BY, _Location(_DEVICE, 0))
