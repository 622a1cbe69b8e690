"""CUDA only: keep memory that the CPU writes and the GPU reads at the host.

MLX moves a buffer that the host touches into managed memory, whose pages then wander between CPU
and GPU at every change of the reader. A rollout changes the reader at every step. Told to leave the
pages at the host and map them for the GPU, the driver moves nothing (measurement:
``benchmarks/RESULTS.md``). On Metal memory is unified, on a CPU there is nothing to do.
"""

import ctypes
import functools

import mlx.core as mx

_PREFERRED_LOCATION, _ACCESSED_BY = 3, 5  # cudaMemoryAdvise
_DEVICE, _HOST = 1, 2  # cudaMemLocationType


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
