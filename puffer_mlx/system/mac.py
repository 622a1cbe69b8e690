"""What only a Mac has: cores of two kinds, Accelerate, and command buffers for its GPU.

Everywhere else these functions find nothing and change nothing. They are tested with stand-ins for
the C library and for Accelerate, and were not run on a Mac. Imports neither MLX nor NumPy.
"""

import ctypes
import os
import platform
from collections.abc import Callable, MutableMapping
from typing import Any

ACCELERATE = "/System/Library/Frameworks/Accelerate.framework/Accelerate"
# The function that MLX's wheel for macOS takes from there, and its name before macOS 13.3. Both
# take 32-bit integers.
_SGEMM = ("cblas_sgemm$NEWLAPACK", "cblas_sgemm")

# MLX hands a command buffer to the GPU after 40 operations or 40 MB (50 on Max and Ultra chips).
# Each costs about 20 µs, and a minibatch has hundreds of operations.
COMMAND_BUFFERS = {"MLX_MAX_OPS_PER_BUFFER": "200", "MLX_MAX_MB_PER_BUFFER": "400"}
# Bytes of memory, between Macs with 8 GB and 16: what a command buffer refers to stays until it is
# done.
_ENOUGH = 12 << 30


def on_a_mac() -> bool:
    """Whether this is macOS."""
    return platform.system() == "Darwin"


def sysctl(name: str, library: Any = None) -> int | None:
    """A number that macOS's kernel tells, ``hw.memsize`` say; None if it doesn't know that name.

    Args:
        name: of an integer of 32 or 64 bits.
        library: the C library; the process's own if None.
    """
    read = (library or ctypes.CDLL(None)).sysctlbyname
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)  # 32 bits fill the lower half
    failed = read(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if failed else value.value


def performance_cores(library: Any = None) -> int | None:
    """A Mac's fast cores, without the efficiency cores; None elsewhere and where all are alike.

    Work that is split evenly over both kinds ends when the slow ones are through.
    """
    return (sysctl("hw.perflevel0.logicalcpu", library) or None) if on_a_mac() else None


def accelerate_gemm(load: Callable[[str], Any] = ctypes.CDLL) -> int:
    """The address of Accelerate's ``cblas_sgemm`` (32-bit integers); 0 where it can't be had.

    Args:
        load: opens a library by its path, raising OSError.
    """
    try:
        library = load(ACCELERATE)
    except OSError:
        return 0
    functions = (getattr(library, name, None) for name in _SGEMM)
    function = next((f for f in functions if f is not None), None)
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function is not None else 0


def set_command_buffers(environment: MutableMapping[str, str] = os.environ) -> None:
    """On a Mac with more than 8 GB, let MLX's command buffers hold more; before MLX loads.

    What the environment says already stays.
    """
    if on_a_mac() and (sysctl("hw.memsize") or 0) >= _ENOUGH:
        for name, value in COMMAND_BUFFERS.items():
            environment.setdefault(name, value)
