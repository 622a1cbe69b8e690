"""Step the Python environments of one group of agents, in this process or in several processes.

``SyncGroup`` and ``AsyncGroup`` have the same methods. Agents and instances are numbered across
processes, so both give the same rows.

Processes share the buffers' memory with the trainer. They ignore Ctrl-C, SIGHUP and SIGTERM, which
the trainer handles, and end when the trainer ends. Each process writes the index of the environment
that it is stepping to shared memory, for messages if it dies or hangs. A hanging process is sent a
signal to report its traceback. ``close`` ends all processes.
"""

import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec import registries
from puffer_mlx.vec.env_failures import EnvFailure, describe_exception
from puffer_mlx.vec.instances import (
    Buffers,
    BufferShapes,
    EnvFactory,
    EpisodeInfo,
    Instances,
    report_unclosed,
)
from puffer_mlx.vec.processes import (
    START_METHOD,
    allow_children,
    begin_child,
    describe_exit,
    starting_children,
)

_MIN_START_TIMEOUT = 60.0  # minimum seconds for a process to start and make its environments
_START_TIMEOUT_FACTOR = 4.0  # times vec.timeout: imports are slow when all processes start at once
_CLOSE_TIMEOUT = 3.0  # seconds for environments to close
_SHUTDOWN_TIMEOUT = 1.0  # seconds for a process to end, or to report where it hangs
_DEATH_HINT = (
    "was there too little memory (fewer vec.total_agents), or did compiled code crash"
    " (vec.backend = sync shows where)?"
)
_EXIT_DISCONNECTED = 76  # exit code of a process that can't send its result
_DISCONNECTED_HINT = (
    "an environment must not close all descriptors (os.closerange, code for daemons)"
)
_DUMP_SIGNAL = signal.SIGUSR1  # sent to a hanging process
_CLOSE_TASK, _STEP_TASK = pickle.dumps(("close", ())), pickle.dumps(("step", ()))
_EMPTY_RESULT = pickle.dumps([])


class Unclosed(NamedTuple):
    """Last message of a worker process that says why ``close`` of an environment failed."""

    failure: str


class SyncGroup(Instances):
    """A group of agents whose Python environments step in this process, one after another.

    Args:
        shapes: Shapes of its buffers.
        factory: Makes the instances.
        seed: Seed of instance 0 of all groups.
        number: Number of this group's first instance.
        arguments: Further arguments of ``Instances``.

    Attributes:
        buffers: Arrays of the group's agents.

    Raises:
        UserError: An environment can't be made.
    """

    def __init__(
        self, shapes: BufferShapes, *, factory: EnvFactory, seed: int, number: int, **arguments: Any
    ) -> None:
        self._origin = factory.name, number, seed
        buffers = Buffers.allocate(shapes)
        current, busy = np.zeros(1, int), np.zeros(1)
        super().__init__(factory, buffers, current, busy, seed=seed, number=number, **arguments)

    def submit(self, what: str, *arguments: Any) -> None:
        """Submit a ``step`` or ``reset`` of this group's environments; ``wait`` executes it."""
        self._task = getattr(self, what), arguments

    def wait(self) -> Any:
        """Execute the group's submitted step or reset here. Returns reports of ended episodes.

        Raises:
            UserError: An environment failed; close all.
        """
        method, arguments = self._task
        try:
            return method(*arguments)
        except EnvFailure as failure:
            raise failure.report(*self._origin) from None

    def render(self) -> Any:
        """Render this group's first environment. Returns a picture, or an error (``UserError``)."""
        self.submit("picture")
        return self.wait()

    def close(self) -> None:
        """Close the environments of this group. A failure is printed, not raised."""
        report_unclosed(self._origin[0], self.close_all())

    def busy_seconds(self) -> float:
        """Return the seconds that this group spent in environment steps."""
        return float(self._busy[0])


class AsyncGroup:
    """A group of agents whose Python environments step in W worker processes.

    Args:
        shapes: Shapes of its buffers.
        workers: Number of processes W, a divisor of ``count``.
        timeout: Seconds after which a process counts as hanging; starting may take longer.
        factory: Makes the instances.
        seed: Seed of instance 0 of all groups.
        count: Number of instances in the group.
        number: Number of this group's first instance.
        arguments: Further arguments of ``Instances``.

    Attributes:
        buffers: Arrays of the group's agents.

    Raises:
        UserError: The environments can't be made, or can't be sent to a process. All processes have
            ended then.
    """

    def __init__(
        self,
        shapes: BufferShapes,
        *,
        workers: int,
        timeout: float,
        factory: EnvFactory,
        seed: int,
        count: int,
        number: int,
        **arguments: Any,
    ) -> None:
        self._origin = factory.name, number, seed
        self._count = count // workers  # instances of a process
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        # Also run when the program ends: multiprocessing would send SIGTERM, which they ignore.
        ending = factory.name, self._pipes, self.processes
        self._end_processes = Finalize(self, _end_processes, ending, exitpriority=0)
        context: Any = multiprocessing.get_context(START_METHOD)
        preload = [__name__, type(factory).__module__, "gymnasium"]
        shapes = {**shapes, "current": ((workers,), np.int64), "busy": ((workers,), np.float64)}
        memory = {key: context.RawArray("b", _byte_count(*kind)) for key, kind in shapes.items()}
        self.buffers, self._current, self._busy = _view_buffers(memory, shapes)
        self._n = len(self.buffers.rewards) // workers
        sent = pickle_factory(factory)
        method = multiprocessing.get_start_method()
        try:
            for w in range(workers):
                first = number + w * self._count
                rest = {**arguments, "seed": seed, "count": self._count, "number": first}
                pipe, end = context.Pipe()
                what = w, self._n, end, method, sent, memory, shapes, rest
                process = context.Process(target=_run_worker, args=what, daemon=True)
                with starting_children(preload):
                    process.start()
                end.close()
                self._pipes.append(pipe)
                self.processes.append(process)
            self._set_timeout(max(_MIN_START_TIMEOUT, _START_TIMEOUT_FACTOR * timeout))
            self.wait()
            self._set_timeout(timeout)
        except BaseException:
            self.close()
            raise

    def submit(self, what: str, *arguments: Any) -> None:
        """Send a ``step`` or ``reset`` of environments to all worker processes of this group."""
        task = pickle.dumps((what, arguments)) if arguments else _STEP_TASK
        for w, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(task)
            except OSError:
                raise self._death_error(w) from None

    def wait(self) -> list[EpisodeInfo]:
        """Wait for the workers' submitted step or reset. Returns reports of ended episodes.

        Raises:
            UserError: An environment failed, died or hangs; close all.
        """
        infos: list[EpisodeInfo] = []
        for w in range(len(self._pipes)):
            received = self._receive(w)
            first = w * self._n
            if isinstance(received, UserError):
                raise received
            if received:
                infos += [info.shifted(first) for info in received]
        return infos

    def render(self) -> Any:
        """Render this group's first environment, in its worker. Returns a picture or an error."""
        with suppress(OSError):  # the process died, which ``_receive`` reports
            self._pipes[0].send(("picture", ()))
        return self._receive(0)

    def busy_seconds(self) -> float:
        """Return the seconds spent in environment steps, summed over this group's processes."""
        return float(self._busy.sum())

    def close(self) -> None:
        """End all worker processes of this group; kill those that don't end in time."""
        self._end_processes()

    def _set_timeout(self, seconds: float) -> None:
        """Set the timeout for reading from worker processes, after which they count as hanging.

        A socket option is faster than ``poll`` before each read, by a tenth of a round trip.
        """
        self._timeout = seconds
        whole_seconds = int(seconds)
        text = struct.pack("ll", whole_seconds, int((seconds - whole_seconds) * 1e6))
        for pipe in self._pipes:
            with socket.socket(fileno=os.dup(pipe.fileno())) as end:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, text)

    def _receive(self, w: int) -> Any:
        """Receive a worker process's result, or raise the error if it failed, died or hangs."""
        try:
            message = self._pipes[w].recv()
        except BlockingIOError:
            raise self._hang_error(w) from None
        except (EOFError, OSError):
            raise self._death_error(w) from None
        if isinstance(message, EnvFailure):
            raise self._report(w, message)
        return message

    def _report(self, w: int, failure: EnvFailure) -> UserError:
        name, number, seed = self._origin
        return failure.report(name, number + w * self._count, seed)

    def _death_error(self, w: int) -> UserError:
        process = self.processes[w]
        process.join(_SHUTDOWN_TIMEOUT)
        code = process.exitcode or 0
        text, hint = f"its process {describe_exit(code)}", _DEATH_HINT
        if code == _EXIT_DISCONNECTED:
            text, hint = "its process lost its connection to this one", _DISCONNECTED_HINT
        return self._report(w, EnvFailure("died", text, int(self._current[w]), hint))

    def _hang_error(self, w: int) -> UserError:
        pipe = self._pipes[w]
        with suppress(ProcessLookupError):
            os.kill(self.processes[w].pid, _DUMP_SIGNAL)
        text = f"nothing came back for {self._timeout:g} seconds (vec.timeout)"
        with suppress(Exception):  # the process may have died, or written half a message
            message = pipe.recv() if pipe.poll(_SHUTDOWN_TIMEOUT) else None
            lines = message.text.partition("\n")[2] if isinstance(message, EnvFailure) else ""
            text += f"; it was at\n{lines}" if lines else ""
        hint = "raise vec.timeout if it is only slow"
        return self._report(w, EnvFailure("hangs", text, int(self._current[w]), hint))


def _end_processes(name: str, pipes: list[Connection], processes: Sequence[Any]) -> None:
    """End a group's worker processes, and print failures of ``close`` of its environments."""
    try:
        for pipe in pipes:
            with suppress(OSError):  # its process has ended
                # The process answers after its current step, whose result is unused.
                pipe.send_bytes(_CLOSE_TASK)
        _join(processes, _CLOSE_TIMEOUT)
    finally:  # also after a second Ctrl-C
        for process in processes:
            process.kill()
        _join(processes, _CLOSE_TIMEOUT)
        for pipe in pipes:
            report_unclosed(name, _close_error(pipe))
            pipe.close()


def _join(processes: Sequence[Any], timeout: float) -> None:
    """Wait until the given processes have ended, or until a timeout.

    Args:
        processes: The processes.
        timeout: Seconds for all processes together.
    """
    deadline = time.monotonic() + timeout
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))


def open_group(
    shapes: BufferShapes, workers: int, timeout: float, **arguments: Any
) -> SyncGroup | AsyncGroup:
    """Make one group of Python environments: in this process if ``workers`` is 0, else others."""
    if workers:
        return AsyncGroup(shapes, workers=workers, timeout=timeout, **arguments)
    return SyncGroup(shapes, **arguments)


def _run_worker(
    w: int,
    n: int,
    pipe: Connection,
    method: str,
    sent: bytes,
    memory: dict[str, Any],
    shapes: BufferShapes,
    arguments: dict[str, Any],
) -> None:
    """Main function of a worker process: make environments, execute tasks from the parent."""
    begin_child()
    signal.signal(_DUMP_SIGNAL, _raise_timeout)
    allow_children(pipe, method)
    buffers, current, busy = _view_buffers(memory, shapes)
    buffers, current = buffers.select(slice(w * n, (w + 1) * n)), current[w : w + 1]
    instances = None
    try:
        registered, factory_bytes = pickle.loads(sent)
        factory = pickle.loads(factory_bytes)
        registries.receive(registered)  # replaces environments registered by imports
        instances = Instances(factory, buffers, current, busy[w : w + 1], **arguments)
        pipe.send_bytes(_EMPTY_RESULT)
        while (task := _next_task(pipe))[0] != "close":
            result = getattr(instances, task[0])(*task[1])
            if isinstance(result, list) and not result:
                pipe.send_bytes(_EMPTY_RESULT)
            else:
                pipe.send(result)
    except BaseException as error:  # also if the factory can't be read, or a result can't be sent
        message = error
        if not isinstance(error, EnvFailure | UserError):
            text = describe_exception(error)
            message = EnvFailure("failed in its process", text, int(current[0]))
        try:
            pipe.send(message)
        except OSError:
            sys.exit(_EXIT_DISCONNECTED)
    finally:
        if instances is not None and (failure := instances.close_all()):
            with suppress(OSError):
                pipe.send(Unclosed(failure))


def _next_task(pipe: Connection) -> tuple[str, tuple[Any, ...]]:
    """Receive a worker's next task, its name and arguments; ``close`` if the trainer has ended."""
    try:
        return pipe.recv()
    except EOFError:
        return "close", ()


def _close_error(pipe: Connection) -> str:
    """Return why ``close`` of an environment failed in an ended worker process, or ""."""
    failure = ""
    with suppress(EOFError, OSError):
        while pipe.poll():
            message = pipe.recv()
            failure = message.failure if isinstance(message, Unclosed) else failure
    return failure


def _raise_timeout(*_: Any) -> None:
    """Signal handler that interrupts hanging code: raises ``TimeoutError``, so its lines show."""
    raise TimeoutError


def _byte_count(shape: Sequence[int], dtype: Any) -> int:
    return int(np.prod(shape)) * np.dtype(dtype).itemsize


def _view_buffers(
    memory: dict[str, Any], shapes: BufferShapes
) -> tuple[Buffers, np.ndarray, np.ndarray]:
    """Return arrays in memory that worker processes share: buffers, progress, and busy seconds.

    Progress is the index of the instance that each process is running. Busy seconds are those spent
    in steps, also one per process.
    """
    arrays = {
        key: np.frombuffer(memory[key], dtype).reshape(shape)
        for key, (shape, dtype) in shapes.items()
    }
    current, busy = arrays.pop("current"), arrays.pop("busy")
    return Buffers(**arrays), current, busy


def pickle_factory(factory: EnvFactory) -> bytes:
    """Pickle a factory and this process's registered environments, for a worker process.

    Raises:
        UserError: The factory can't be pickled.
    """
    try:
        factory_bytes = registries.dumps(factory)
    except Exception as error:
        raise UserError(
            f"{factory.name}: its constructor can't be sent to another process: {error}",
            "use a class or function of a module, or set vec.backend to sync",
        ) from None
    return pickle.dumps((registries.registered(), factory_bytes))
