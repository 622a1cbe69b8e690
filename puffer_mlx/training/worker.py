"""A thread that does one job after the other, for the whole life of the process.

MLX's streams belong to threads and are never given back to the system, so there is one such thread
and not one for each run. Unlike those of ``concurrent.futures`` it is still there when the process
ends, to let go of its streams: MLX aborts a process whose threads end with streams of their own.
"""

import atexit
import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import mlx.core as mx


class Worker:
    """One thread and its jobs; ``worker()`` gives the process's.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Any]) -> Future:
        """Have a job done after those before it; its result or exception is the future's."""
        future: Future = Future()
        self._jobs.put((future, job))
        return future

    def close(self) -> None:
        """End the thread after its jobs."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            future, job = item
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
            del item, future, job  # what they hold isn't needed until the next one comes
        mx.clear_streams()


@functools.cache
def worker() -> Worker:
    """The process's worker, made when it is first asked for."""
    made = Worker("collector")
    atexit.register(made.close)
    return made
