"""Arrays that C code reads or writes: their shapes, checked, and where they are in memory."""

import ctypes
from typing import Any

import numpy as np

from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.base import Rows

FLOAT32, UINT8 = np.dtype(np.float32), np.dtype(np.uint8)


def shapes(n: int, spec: EnvSpec) -> tuple[tuple[int, ...], ...]:
    """Shapes of observations, of rewards and terminals, and of masks, for n agents."""
    return (n, spec.observation_size), (n,), (n, spec.mask_size)


def addresses(
    out: Rows, spec: EnvSpec, expected: tuple[tuple[int, ...], ...]
) -> tuple[int | None, ...]:
    """Addresses of the arrays of ``out``, of the shapes that ``shapes`` returns."""
    observations, vector, masks = expected
    return (
        address(out.observations, observations, spec.observation_dtype, "observations"),
        address(out.rewards, vector, FLOAT32, "rewards"),
        address(out.terminals, vector, FLOAT32, "terminals"),
        address(out.masks, masks, UINT8, "masks") if spec.mask_size else None,
    )


def address(
    array: Any,
    shape: tuple[int, ...],
    dtype: np.dtype,
    what: str,
    written: bool = True,
) -> int:
    """Address of a NumPy array, C-contiguous, faster than by ``array.ctypes.data``.

    Args:
        array: or None, which is an error.
        shape: that it must have.
        dtype: that it must have.
        what: it is, for messages.
        written: whether C writes to it; if not, it may be read-only.

    Raises:
        ValueError: it isn't what it must be.
    """
    if array is not None and array.shape == shape and array.dtype == dtype:
        try:
            return ctypes.addressof(ctypes.c_char.from_buffer(array))
        except (TypeError, ValueError, BufferError):  # read-only, or not contiguous
            if array.flags.c_contiguous and not written:
                return array.ctypes.data
    found = "None"
    if array is not None:
        found = f"{array.dtype} {array.shape}"
        found += "" if array.flags.c_contiguous else ", not C-contiguous"
        found += "" if array.flags.writeable else ", read-only"
    wanted = "writable and C-contiguous" if written else "C-contiguous"
    raise ValueError(f"{what}: expected {dtype} {shape}, {wanted}; found {found}")
