"""Start worker processes for Python environments, and end them together with the trainer.

Processes are forked from a server without the trainer's data, or started as new programs where
forking is unsafe (macOS). They are never forked from the trainer, whose threads and device don't
survive a fork.
"""

import ctypes
import fcntl
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from types import ModuleType

from puffer_mlx.system import output

SAFE_PATH = "PYTHONSAFEPATH"  # variable: don't import files of the working directory
SAFE_PATH_MARK = "puffer_mlx"  # the variable's value if this program set it
START_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
# Signals that only the parent process handles.
PARENT_SIGNALS = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}
_PR_SET_PDEATHSIG = 1  # Linux's prctl: the signal when the parent ends
# A separate fork server: processes that the user's program starts through the server of
# ``multiprocessing`` must not inherit our blocked signals and modules.
_SERVER = forkserver.ForkServer()
ROUND_TRIP_SECONDS = 100e-6  # overhead of a step in another process: pipes and wake-up


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def allow_children(pipe: Connection, start_method: str) -> None:
    """Allow environments in this worker process to start child processes.

    On Linux, processes forked by its main thread end with this process. They don't inherit the
    pipe, so that it closes, and the parent notices, when this process ends.

    Args:
        pipe: Child end of the pipe.
        start_method: Start method of ``multiprocessing`` in the parent.
    """
    multiprocessing.current_process().daemon = False  # the parent still ends it as a daemon
    multiprocessing.set_start_method(start_method, force=True)
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    forks_from_main = False

    def before() -> None:
        nonlocal forks_from_main
        forks_from_main = threading.current_thread() is threading.main_thread()

    def after_in_child() -> None:
        with suppress(OSError):  # code for daemons may have closed the pipe
            pipe.close()
        if prctl is not None and forks_from_main:  # the signal comes when the forking thread ends
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    os.register_at_fork(before=before, after_in_child=after_in_child)


@contextmanager
def starting_children(preload: list[str]) -> Iterator[None]:
    """Set up ``multiprocessing`` to start worker processes that don't import the main script.

    Args:
        preload: Modules that the fork server imports when it starts, for all its processes.

    Workers don't need the main script, because its objects are pickled by value. The script may
    import MLX, which takes half a second, and may lack ``if __name__ == "__main__"``. The working
    directory isn't put on the path, where a ``random.py`` would replace the standard library's.

    ``PARENT_SIGNALS`` are blocked in the new processes: in a worker until ``begin_child``, in the
    fork server and the resource tracker permanently.
    """
    main = sys.modules["__main__"]
    safe = os.environ.get(SAFE_PATH)
    connect = forkserver.connect_to_new_process
    _SERVER.set_forkserver_preload(preload)
    forkserver.connect_to_new_process = _SERVER.connect_to_new_process
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ[SAFE_PATH] = safe or SAFE_PATH_MARK
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, PARENT_SIGNALS)
    try:
        resource_tracker.ensure_running()  # unblocks SIGINT and SIGTERM, which it ignores
        signal.pthread_sigmask(signal.SIG_BLOCK, PARENT_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        sys.modules["__main__"] = main
        forkserver.connect_to_new_process = connect
        if not safe:
            del os.environ[SAFE_PATH]


def begin_child() -> None:
    """Set up a new worker process: ignore signals and lost output, and end with the parent.

    A terminal or a batch system signals all processes at once, but the parent may need the
    environments until its epoch ends.
    """
    output.never_raise()
    # The variable is for this process only, not for programs that an environment starts.
    if os.environ.get(SAFE_PATH) == SAFE_PATH_MARK:
        del os.environ[SAFE_PATH]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # SIGTERM must end an environment's children: programs don't inherit a handler, forks reset it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(
        before=partial(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGTERM}),
        after_in_parent=partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGTERM}),
        after_in_child=_restore_sigterm,
    )
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENT_SIGNALS)
    _end_with_parent()


def _restore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def describe_exit(code: int) -> str:
    """Describe how a process ended, from its exit code: "was killed by SIGKILL"."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _end_with_parent() -> None:
    """End this process when its parent ends, even in the middle of work."""
    if (parent := multiprocessing.parent_process()) is None:
        return
    if sys.platform == "linux":  # even where C code holds Python's lock
        signal.signal(signal.SIGIO, signal.SIG_DFL)  # ends the process
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(parent.sentinel, fcntl.F_GETFL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)
    threading.Thread(target=_wait_for_end, args=(parent.sentinel,), daemon=True).start()


def _wait_for_end(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
