"""Processes that environments step in: how they begin, how they end with their parent.

They are forked from a server that has nothing of the trainer in it, or are started anew where
forking is no good (macOS): never from the trainer's own process, whose threads and device wouldn't
survive it.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import ModuleType

from puffer_mlx.system import output

CONTEXT = "forkserver" if sys.platform == "linux" else "spawn"
ROUND_TRIP = 100e-6  # seconds that a process's step costs the trainer's: pipes, and being woken up


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def no_main_module() -> Iterator[None]:
    """Let child processes not run the main script again, as ``multiprocessing`` has them do.

    They need nothing of it (what it defines is pickled by value); it may import MLX, which costs
    each of them half a second, and need not be guarded against being run twice.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def begin_child() -> None:
    """In a new process: leave Ctrl-C and lost output to the parent, and end when it is gone."""
    output.never_raise()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def how_it_ended(code: int) -> str:
    """A process's exit code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
