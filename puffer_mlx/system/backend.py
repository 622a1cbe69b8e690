"""Report the back-end (CPU, Metal, CUDA) that graphs are built for, and build for another one.

MLX builds a graph first and evaluates it later. Building a graph for a GPU needs no GPU, so any
machine can inspect it, as ``benchmarks/launches.py`` does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import mlx.core as mx

Kernel = Callable[..., list[mx.array]]


class _Substitute(NamedTuple):
    backend: str
    kernel: Kernel


_substitute: _Substitute | None = None


def backend(device: mx.Device | None = None) -> str:
    """Return the back-end for which graphs on a device are built: ``cpu``, ``metal`` or ``cuda``.

    Args:
        device: None for the default device.
    """
    if _substitute is not None:
        return _substitute.backend
    if device is None:
        device = mx.default_device()
    return "cpu" if device == mx.cpu else gpu_backend()


def gpu_backend() -> str:
    """Return the GPU back-end that kernels are written for: ``metal`` or ``cuda``."""
    if _substitute is not None:
        return _substitute.backend
    return "metal" if mx.metal.is_available() else "cuda"


def kernel_substitute() -> Kernel | None:
    """Return the function called instead of launching GPU kernels, or None to launch them."""
    return None if _substitute is None else _substitute.kernel


@contextmanager
def building_for(backend: str, kernel: Kernel) -> Iterator[None]:
    """Build graphs in a block for a GPU back-end that this machine may lack, process-wide.

    Functions that are compiled in the block keep its graphs. So create them in the block, and don't
    call them outside.

    Args:
        backend: ``metal`` or ``cuda``.
        kernel: Called for each launch of a kernel, with the kernel's name and the arguments of
            MLX's kernels; returns the outputs.
    """
    global _substitute
    previous = _substitute
    _substitute = _Substitute(backend, kernel)
    try:
        yield
    finally:
        _substitute = previous
