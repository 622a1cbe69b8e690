"""Processes that environments step in: how they begin, how they end with their parent.

They are forked from a server that has nothing of the trainer in it, or are started anew where
forking is no good (macOS): never from the trainer's own process, whose threads and device wouldn't
survive it.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import ModuleType

from puffer_mlx.system import output

SAFE_PATH = "PYTHONSAFEPATH"  # no files of the working folder as modules
OURS = "puffer_mlx"  # its value where it isn't the person's
CONTEXT = "forkserver" if sys.platform == "linux" else "spawn"
_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent ends
ROUND_TRIP = 100e-6  # seconds that a process's step costs the trainer's: pipes, and being woken up


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def allow_children(pipe: Connection, start_method: str) -> None:
    """Let this process, a daemon, have child processes, which an environment may need.

    On Linux, what its main thread forks ends when this process ends. It keeps no copy of the pipe,
    whose end tells the parent that this process died.

    Args:
        pipe: this process's end of the pipe.
        start_method: of ``multiprocessing`` in the parent, where environments expect to be.
    """
    multiprocessing.current_process().daemon = False  # the parent still ends it as a daemon
    multiprocessing.set_start_method(start_method, force=True)
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    forks_from_main = False

    def before() -> None:
        nonlocal forks_from_main
        forks_from_main = threading.current_thread() is threading.main_thread()

    def after_in_child() -> None:
        with suppress(OSError):  # code that makes daemons may have closed it
            pipe.close()
        if prctl is not None and forks_from_main:  # else it would end with that thread
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    os.register_at_fork(before=before, after_in_child=after_in_child)


@contextmanager
def starting_children() -> Iterator[None]:
    """Start child processes meanwhile that import nothing which they don't need.

    Not the main script, which ``multiprocessing`` has them run again: they need nothing of it (what
    it defines is pickled by value); it may import MLX, which costs each of them half a second, and
    need not be guarded against being run twice. Nor a ``random.py`` of the working folder, which
    comes first on the path of a Python that ``multiprocessing`` starts.

    Ctrl-C is blocked, which they inherit: it would be a traceback of theirs until ``begin_child``.
    """
    main, safe = sys.modules["__main__"], os.environ.get(SAFE_PATH)
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ[SAFE_PATH] = safe or OURS
    resource_tracker.ensure_running()  # where it is begun Ctrl-C is unblocked again
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        sys.modules["__main__"] = main
        if not safe:
            del os.environ[SAFE_PATH]


def begin_child() -> None:
    """In a new process: leave Ctrl-C and lost output to the parent, and end when it is gone."""
    output.never_raise()
    if os.environ.get(SAFE_PATH) == OURS:  # programs that an environment starts are its own
        del os.environ[SAFE_PATH]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
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
