"""Waiting for C code that may never end, so that Ctrl-C is heard meanwhile.

Python runs its signal handlers between two of its own instructions, so a call that waits for an
environment comes back every now and then, and is made again.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

SLICE_MS = 100  # from one look at signals to the next
PATIENCE_MS = 500  # for a step under way when the caller does not want to wait any more
UNDER_WAY, OVER = -1, -2  # PUFFER_UNDER_WAY and PUFFER_OVER of envs/src/vec.h

ABANDONED: list[Any] = []  # what threads that don't end may still read and write


def until_done(call: Callable[..., int], *arguments: Any, stop: Callable[[], object]) -> int:
    """Call ``call(*arguments, milliseconds)`` until nothing is under way any more.

    Args:
        call: returns ``UNDER_WAY``, or what this returns.
        arguments: its own.
        stop: called after an interrupt, so that not more than a step is under way.

    Returns:
        what it returned then, 0 or more, or ``OVER``.

    Raises:
        BaseException: what a signal handler raised. A step that ends soon is waited for first, so
            that the environments can be used again, or closed.
    """
    try:
        while (found := call(*arguments, SLICE_MS)) == UNDER_WAY:
            pass
    except BaseException:
        stop()
        call(*arguments, PATIENCE_MS)
        raise
    return found


def abandon(holder: Any, name: str) -> None:
    """Keep an object for as long as the process lives, its end included, and say so."""
    ABANDONED.append(holder)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))  # also when the interpreter clears modules
    print(f"puffer_mlx: {name}: a step doesn't end; it is left to itself", file=sys.stderr)
