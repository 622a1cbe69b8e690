"""Use features of macOS: performance cores, Accelerate, and the GPU's command buffers.

On other systems these functions return None or 0 and change nothing. They are tested with
substitutes for the C library and Accelerate, not on a Mac. Imports neither MLX nor NumPy.
"""

import ctypes
import os
import platform
from collections.abc import Callable, MutableMapping
from typing import Any

ACCELERATE = "/System/Library/Frameworks/Accelerate.framework/Accelerate"
# Names of Accelerate's matrix product: since macOS 13.3, as MLX's wheel imports it, and before.
# Both take 32-bit integers.
_SGEMM = ("cblas_sgemm$NEWLAPACK", "cblas_sgemm")

# By default, MLX submits a command buffer to the GPU after 40 operations or 40 MB (50 on Max and
# Ultra chips). A submission takes about 20 µs, and a minibatch has hundreds of operations.
COMMAND_BUFFERS = {"MLX_MAX_OPS_PER_BUFFER": "200", "MLX_MAX_MB_PER_BUFFER": "400"}
# Smallest memory, in bytes, with which command buffers are enlarged: Macs with 8 GB are excluded,
# those with 16 GB included. Arrays used by a command buffer are freed only when it has finished.
_MIN_MEMORY = 12 << 30


def on_a_mac() -> bool:
    """Return True if this process runs on macOS."""
    return platform.system() == "Darwin"


def sysctl(name: str, library: Any = None) -> int | None:
    """Return an integer that macOS's kernel reports under a name, or None for an unknown name.

    Args:
        name: Name of a 32-bit or 64-bit integer, such as ``hw.memsize``.
        library: C library; None for this process's.
    """
    sysctlbyname = (library or ctypes.CDLL(None)).sysctlbyname
    value = ctypes.c_int64(0)  # a 32-bit integer fills the lower half
    size = ctypes.c_size_t(8)
    failed = sysctlbyname(
        name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return None if failed else value.value


def performance_cores(library: Any = None) -> int | None:
    """Return a Mac's number of performance cores, or None if all cores are equal.

    Work that is divided evenly over both kinds of cores waits for the efficiency cores.
    """
    return (sysctl("hw.perflevel0.logicalcpu", library) or None) if on_a_mac() else None


def accelerate_gemm(load: Callable[[str], Any] = ctypes.CDLL) -> int:
    """Return the address of Accelerate's ``cblas_sgemm`` (32-bit integers), or 0.

    Args:
        load: Opens a library by its path, or raises OSError.
    """
    try:
        library = load(ACCELERATE)
    except OSError:
        return 0
    for name in _SGEMM:
        function = getattr(library, name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def set_command_buffers(environment: MutableMapping[str, str] = os.environ) -> None:
    """Enlarge MLX's command buffers for the GPU on a Mac with more than 8 GB of memory.

    Call it before MLX is imported. Variables that are already set are unchanged.

    Args:
        environment: Environment variables to change.
    """
    if on_a_mac() and (sysctl("hw.memsize") or 0) >= _MIN_MEMORY:
        for name, value in COMMAND_BUFFERS.items():
            environment.setdefault(name, value)
