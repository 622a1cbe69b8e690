"""Manage the rollout thread, the MLX streams for acting, and the CPU cores per stream.

MLX runs each CPU stream in one thread, but operations of the CPU extension can use more threads.
The number of these threads, including the stream's thread, is the stream's *width*. With suitable
widths, acting and learning use different cores at the same time. MLX's built-in operations use one
thread, except matrix products on macOS, where Accelerate chooses.

MLX queues at most 10 tasks (of 5 operations) on all streams together. While a learner's long graph
is evaluated, other threads therefore wait for the learner's operations, and a rollout took twice
the time. So the learner's stream queues only a few operations of the extension at a time
(`configure_learner_stream`).

MLX never frees a stream, and a stream belongs to one thread, so all runs of a process share one
rollout thread (``Worker``). At the end of the process, the thread clears its streams, because MLX
aborts if a thread ends with streams. Threads of ``concurrent.futures`` end too early for that.
"""

import atexit
import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import cpu_extension

_LEARNER_DEPTH = 2  # queued operations of a learner's stream: one runs, the next is ready

_local = threading.local()  # has the attribute `streams`: acting streams of the current thread


def acting_streams(device: mx.Device, cores: int, groups: int) -> list[mx.Stream]:
    """Return the MLX streams for the policy's steps. Call this in the thread that uses them.

    On a CPU, each group gets a stream if there are enough cores, and all streams have the same
    width. Two groups on two streams are faster than one group split among threads. The streams are
    created once per thread; later calls return the same streams with new widths. On a GPU, the
    result is the default stream, because more streams don't help.

    Args:
        device: Device that acts.
        cores: Number of threads for acting, at least 1.
        groups: Number of groups of agents, at least 1. Groups alternate on the streams.

    Returns:
        At most min(cores, groups) streams.
    """
    if device != mx.cpu:
        return [mx.default_stream(device)]
    count = min(cores, groups)
    if not hasattr(_local, "streams"):
        _local.streams = []
    while len(_local.streams) < count:
        _local.streams.append(mx.new_stream(mx.cpu))
    streams = _local.streams[:count]
    for stream in streams:
        set_width(stream, cores // count)
    return streams


def set_width(stream: mx.Stream, threads: int) -> None:
    """Set the number of threads per operation on a CPU stream, for later operations.

    Results don't depend on the number. Without the CPU extension, every operation uses one thread,
    and this function does nothing.

    Args:
        stream: A CPU stream, also one created by another thread.
        threads: Number of threads, including the stream's. 0, the initial value, means as many as
            the process may use.
    """
    module = cpu_extension.load_extension()
    if module is not None:
        module.set_width(stream, threads)


def configure_learner_stream(threads: int) -> None:
    """Configure the calling thread's default CPU stream for learning.

    The stream then queues few operations of the extension at a time. This costs no time, saves a
    fifth of the memory, and lets other threads evaluate. Graphs on this stream must not use a GPU:
    the GPU would start only after the CPU operations.

    Args:
        threads: Number of threads; 0 means as many as the process may use.
    """
    stream = mx.default_stream(mx.cpu)
    set_width(stream, threads)
    module = cpu_extension.load_extension()
    if module is not None:
        module.set_depth(stream, _LEARNER_DEPTH)


class Worker:
    """A thread that runs submitted jobs in order.

    Args:
        name: Name for the thread.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Any]) -> Future:
        """Queue a job for the thread. Returns a future with the job's result or exception."""
        future: Future = Future()
        self._jobs.put((future, job))
        return future

    def close(self) -> None:
        """Wait until all jobs are done, and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        """Run the submitted jobs until ``close``. This is the thread's main function."""
        while (item := self._jobs.get()) is not None:
            future, job = item
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
            del item, future, job  # Free their arrays before waiting for the next job.
        mx.clear_streams()


@functools.cache
def rollout_worker() -> Worker:
    """Return the process's thread for collecting rollouts. The first call creates it."""
    worker = Worker("collector")
    atexit.register(worker.close)
    return worker
