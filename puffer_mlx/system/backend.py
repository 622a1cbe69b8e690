"""The back-end that graphs are built for: the default device's, or one without a device here.

MLX builds a graph first and evaluates it later. Building a graph for a GPU needs no GPU, so any
machine can inspect it, as ``benchmarks/launches.py`` does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import mlx.core as mx

Kernel = Callable[..., list[mx.array]]


class _Foreign(NamedTuple):
    backend: str
    kernel: Kernel


_foreign: _Foreign | None = None


def backend(device: mx.Device | None = None) -> str:
    """Return the back-end of a device: ``cpu``, ``metal`` or ``cuda``.

    Args:
        device: None for the default device.
    """
    if _foreign is not None:
        return _foreign.backend
    if device is None:
        device = mx.default_device()
    return "cpu" if device == mx.cpu else gpu_backend()


def gpu_backend() -> str:
    """Return the language of kernels, ``metal`` or ``cuda``."""
    if _foreign is not None:
        return _foreign.backend
    return "metal" if mx.metal.is_available() else "cuda"


def kernel_substitute() -> Kernel | None:
    """Return the function called in place of kernels, or None to launch them."""
    return None if _foreign is None else _foreign.kernel


@contextmanager
def building_for(backend: str, kernel: Kernel) -> Iterator[None]:
    """Build operations for a back-end during the block, in the entire process.

    Functions that are compiled in the block keep that graph: create them there, and don't call them
    elsewhere.

    Args:
        backend: ``metal`` or ``cuda``.
        kernel: Called for each launch of a kernel, with the kernel's name and the arguments of
            MLX's kernels; returns the outputs.
    """
    global _foreign
    before, _foreign = _foreign, _Foreign(backend, kernel)
    try:
        yield
    finally:
        _foreign = before
