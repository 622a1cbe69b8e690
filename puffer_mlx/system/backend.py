"""The back-end that graphs are built for: the default device's, or one that isn't there.

What MLX computes is a graph that is built first and evaluated later. Building a GPU's takes no GPU,
so on any machine one can look at it: ``benchmarks/launches.py`` does.
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
    """Return ``cpu``, ``metal`` or ``cuda``: what operations are built for on a device.

    Args:
        device: None for the default device.
    """
    if _foreign is not None:
        return _foreign.backend
    if device is None:
        device = mx.default_device()
    return "cpu" if device == mx.cpu else gpu_backend()


def gpu_backend() -> str:
    """``metal`` or ``cuda``: which texts of kernels are taken, wherever they are launched."""
    if _foreign is not None:
        return _foreign.backend
    return "metal" if mx.metal.is_available() else "cuda"


def stand_in() -> Kernel | None:
    """What is called in place of a kernel, which no device here could run; None: the kernel."""
    return None if _foreign is None else _foreign.kernel


@contextmanager
def building_for(backend: str, kernel: Kernel) -> Iterator[None]:
    """Within, operations are built for this back-end, in the whole process.

    Functions that are compiled within keep that graph: make them within, and call them nowhere
    else.

    Args:
        backend: ``metal`` or ``cuda``.
        kernel: called for each launch of a kernel, with its name and then the arguments by which
            MLX's own kernels are called; returns its outputs.
    """
    global _foreign
    before, _foreign = _foreign, _Foreign(backend, kernel)
    try:
        yield
    finally:
        _foreign = before
