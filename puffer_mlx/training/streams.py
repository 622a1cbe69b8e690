"""The thread that collects beside training, streams to act on, and their shares of the cores.

MLX computes a CPU stream on a thread of its own; operations of the CPU extension may take further
threads to help. How many is a stream's *width*, the stream's own thread included, so that acting
and learning can run at the same time on different cores. MLX's own operations take one thread.
How many a product takes on macOS, Accelerate decides.

Evaluation runs ahead of the streams until 10 tasks (of 5 operations) are under way, *on all streams
together*: while a learner's long graph is evaluated, every other thread's evaluation waits at each
of its operations for some of the learner's to end (beside one, a rollout took twice the time). A
learner's stream therefore has few of the extension's operations under way (`learner_width`).

MLX's streams belong to threads and are never given back to the system, so there is one such thread
(``Worker``) and not one for each run. Unlike those of ``concurrent.futures`` it is still there when
the process ends, to let go of its streams: MLX aborts a process whose threads end with streams of
their own.
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

_UNDER_WAY = 2  # operations of a learner's stream: one runs, the next is ready

_made = threading.local()  # a stream belongs to its thread, and MLX never gives one back


def acting_streams(device: mx.Device, cores: int, groups: int) -> list[mx.Stream]:
    """Streams for the policy's steps, to be called in the thread that uses them.

    On a CPU, one for each group while there are cores, of equal width: a step of one group is too
    small to be worth splitting as long as there is another group. They are the thread's own,
    besides its default stream, made once and never given back; a later call gives the same ones,
    with the widths it asks for. A GPU doesn't gain by more than its default stream.

    Args:
        device: where the policy acts.
        cores: threads that acting may use, at least 1.
        groups: groups of agents, at least 1; they take turns on the streams.

    Returns:
        At most min(cores, groups) streams.

    Raises:
        ValueError: ``cores`` or ``groups`` is below 1.
    """
    if cores < 1 or groups < 1:
        raise ValueError(f"cores and groups must be at least 1, got {cores} and {groups}")
    if device != mx.cpu:
        return [mx.default_stream(device)]
    count = min(cores, groups)
    if not hasattr(_made, "streams"):
        _made.streams = []
    while len(_made.streams) < count:
        _made.streams.append(mx.new_stream(mx.cpu))
    streams = _made.streams[:count]
    for stream in streams:
        set_width(stream, cores // count)
    return streams


def set_width(stream: mx.Stream, threads: int) -> None:
    """Let an operation on a CPU stream, of any thread, take so many threads.

    For operations evaluated from now on; results don't depend on it. Without the extension every
    operation takes one thread, and this does nothing.

    Args:
        stream: a CPU's.
        threads: the stream's own included; 0 for as many as the process may use, as at first.

    Raises:
        ValueError: it's a GPU's stream, or ``threads`` is negative.
    """
    _expect(stream, threads)
    module = cpu_extension.load()
    if module is not None:
        module.set_width(stream, threads)


def learner_width(threads: int) -> None:
    """Make the calling thread's default CPU stream a learner's, with a share of the cores.

    It has few of the extension's operations under way at a time, which costs it nothing, takes a
    fifth less memory and lets others' evaluations through. Its graphs must be the CPU's alone:
    evaluation waits for operations to end, and a GPU's work in the same graph begins only when
    evaluation is through.

    Args:
        threads: the share; 0 for as many as the process may use.

    Raises:
        ValueError: ``threads`` is negative.
    """
    stream = mx.default_stream(mx.cpu)
    set_width(stream, threads)
    module = cpu_extension.load()
    if module is not None:
        module.set_depth(stream, _UNDER_WAY)


def _expect(stream: mx.Stream, threads: int) -> None:
    if stream.device != mx.cpu:
        raise ValueError(f"only a CPU stream has a width, not {stream}")
    if threads < 0:
        raise ValueError(f"a stream's threads must be at least 1, or 0 for all, got {threads}")


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
        """Queue a job; the future gets its result or exception."""
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
    collector = Worker("collector")
    atexit.register(collector.close)
    return collector
