"""Gymnasium's environments in processes of their own, whatever may happen to them.

``gymnasium.vector.AsyncVectorEnv`` does the work: a process for each environment, observations in
shared memory. What is added is for the day when something goes wrong: an exception is told with the
environment's own lines, a process that died or hangs is noticed and named, and afterwards none is
left. Children ignore Ctrl-C, which the parent answers, and end when the parent is gone, however
that happened.
"""

import multiprocessing
import os
import queue
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from gymnasium import Env, Wrapper

from puffer_mlx.errors import UserError
from puffer_mlx.vec.gym.vectors import AsyncVectorEnv, AutoresetMode, async_worker
from puffer_mlx.vec.processes import CONTEXT, begin_child, how_it_ended, starting_children
from puffer_mlx.vec.python_faults import RAISED, Fault, failed, form_fault, locate, misfit, told

__all__ = ["Workers"]

_STARTING = 60.0  # seconds at least that a process may take to start and make its environment
_GRACE = 3.0  # seconds that environments have to close
_LAST_WORDS = 1.0  # seconds that a process has to tell what it was doing
_WHY_DEAD = (
    "was there too little memory (fewer vec.total_agents), or did compiled code crash"
    " (vec.backend = sync shows where)?"
)
_ASK = signal.SIGUSR1  # what a hanging process is asked with


class Workers(AsyncVectorEnv):
    """n environments in n processes. Whatever goes wrong is a ``Fault``, after which: ``close``.

    Args:
        makes: n functions that make an environment; picklable.
        autoreset_mode: when the next episode begins.
        timeout: seconds after which a process hangs; starting may take longer.

    Raises:
        Fault: an environment couldn't be made, or isn't like the others. Nothing is left then.
    """

    def __init__(
        self, makes: Sequence[Callable[[], Env]], autoreset_mode: AutoresetMode, timeout: float
    ) -> None:
        self.timeout = timeout
        self.parent_pipes, self.processes = [], []
        multiprocessing.get_context(CONTEXT).set_forkserver_preload([__name__])
        try:
            with self._telling("failed when it was made"), starting_children():
                super().__init__(
                    makes,
                    copy=False,
                    context=CONTEXT,
                    worker=_work,
                    autoreset_mode=autoreset_mode,
                )
        except BaseException:
            self.close(terminate=True)
            raise

    def reset_async(self, *arguments: Any, **keywords: Any) -> None:
        """Begin to reset all environments."""
        with self._telling("failed in reset"):
            super().reset_async(*arguments, **keywords)

    def reset_wait(self, *arguments: Any, **keywords: Any) -> Any:
        """Observations and infos of all environments."""
        with self._telling("failed in reset"):
            return super().reset_wait(*arguments, **keywords)

    def step_async(self, actions: Any) -> None:
        """Begin a step of all environments."""
        try:
            super().step_async(actions)
        except Exception as error:
            raise self._fault(error, "failed in step") from None

    def step_wait(self, timeout: float | None = None) -> Any:
        """What all environments returned."""
        try:
            return super().step_wait(timeout)
        except Exception as error:
            raise self._fault(error, "failed in step") from None

    def render(self) -> Any:
        """Pictures of all environments."""
        with self._telling("failed in render"):
            return super().render()

    def busy_seconds(self) -> float:
        """Seconds that environments spent in steps, all together; asks every process."""
        with self._telling("failed in step"):
            return sum(self.get_attr("busy_seconds"))

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End all processes: politely, then not. None is left when this returns."""
        patience = 0.0 if terminate else _GRACE if timeout is None else timeout
        if not terminate:
            for pipe in self.parent_pipes:
                with suppress(OSError, AttributeError):  # it is dead already
                    pipe.send(("close", None))  # after a step under way, whose result nobody reads
        for end, seconds in ((None, patience), ("terminate", 1.0), ("kill", 10.0)):
            deadline = time.monotonic() + seconds
            for process in self.processes:
                if end and process.is_alive():
                    getattr(process, end)()
            for process in self.processes:
                process.join(max(0.0, deadline - time.monotonic()))
        for pipe in self.parent_pipes:
            if pipe is not None:
                pipe.close()

    def _check_spaces(self) -> None:
        """Wait until all environments are made: each gets its time from when the last one was."""
        self._set_patience(max(self.timeout, _STARTING))
        _, made = zip(*[pipe.recv() for pipe in self.parent_pipes], strict=True)
        self._raise_if_errors(made)
        super()._check_spaces()
        self._set_patience(self.timeout)

    def _set_patience(self, seconds: float) -> None:
        self.patience = seconds
        for pipe in self.parent_pipes:
            _set_patience(pipe, seconds)

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raise what the first of the environments that failed told."""
        failed = [self._last_words(10.0) for success in successes if not success]
        if failed:
            words = [word for word in failed if word is not None]
            raise min(words, key=lambda word: word.index or 0, default=EOFError("no word came"))

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self._fault(error, what) from None

    def _fault(self, error: Exception, what: str) -> Exception:
        """What an exception in this process says of the others."""
        if isinstance(error, Fault | UserError):
            return error
        if isinstance(error, BlockingIOError):
            return self._hang()
        if isinstance(error, OSError | EOFError):
            for index, process in enumerate(self.processes):
                process.join(_LAST_WORDS if index == 0 else 0)
            codes = {i: p.exitcode for i, p in enumerate(self.processes) if p.exitcode is not None}
            if codes:  # one that ended well has called os._exit
                index = next((index for index, code in codes.items() if code), min(codes))
                text = f"its process {how_it_ended(codes[index])}"
                return Fault("died", text, index, _WHY_DEAD)
        return locate(error, self, what)

    def _hang(self) -> Fault:
        late = [i for i, pipe in enumerate(self.parent_pipes) if not pipe.poll()]
        for pid in [self.processes[index].pid for index in late]:
            with suppress(ProcessLookupError):
                if pid is not None:
                    os.kill(pid, _ASK)
        text = f"nothing came back for {self.patience:g} seconds (vec.timeout)"
        words = self._last_words(_LAST_WORDS)
        index = late[0] if late else None
        if words:
            index = words.index
            text += "; it was at" + words.text[len(TimeoutError.__name__) :]
        return Fault("hangs", text, index, "raise vec.timeout if it is only slow")

    def _last_words(self, seconds: float) -> Fault | None:
        """What a process told before it ended."""
        try:
            index, _, error, trace = self.error_queue.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(error, Fault):
            return Fault(error.what, error.text, index, error.hint)
        last = trace.strip().splitlines()[-1]  # Gymnasium's own part of the process failed
        return Fault("failed in step", f"its result can't be handed over: {last}", index)


class _Watched(Wrapper):
    """Tells where the environment's own code failed, and how long its steps took."""

    busy_seconds = 0.0

    def step(self, action: Any) -> Any:
        began = time.perf_counter()
        try:
            found = self.env.step(action)
        except RAISED as error:
            raise failed("failed in step", error) from None
        self.busy_seconds += time.perf_counter() - began
        return self._fitting("step", found)

    def reset(self, **keywords: Any) -> Any:
        try:
            found = self.env.reset(**keywords)
        except RAISED as error:
            raise failed("failed in reset", error) from None
        return self._fitting("reset", found)

    def _fitting(self, method: str, found: Any) -> Any:
        """A result of the right form whose observation is what the space promises."""
        if fault := form_fault(method, found):
            raise fault
        if text := misfit(self.observation_space, found[0]):
            raise Fault(f"failed in {method}", text)
        return found


def _work(
    index: int, make: Any, pipe: Any, parent_pipe: Any, memory: Any, errors: Any, *rest: Any
) -> None:
    """A process: Gymnasium's worker, after the environment was made."""
    begin_child()
    signal.signal(_ASK, _say_where)
    try:
        env = _Watched(make())
    except RAISED as error:
        first = error.__context__ if isinstance(error, UserError) else None
        errors.put((index, Fault, Fault("failed when it was made", told(first or error)), ""))
        pipe.send((None, False))
        return
    pipe.send((None, True))
    try:
        async_worker(index, lambda: env, pipe, parent_pipe, memory, errors, *rest)
    except OSError:  # the parent is gone
        errors.cancel_join_thread()


def _say_where(*_: Any) -> None:
    """Raise where the process hangs: that is told like any failure, with the lines of code."""
    raise TimeoutError


def _set_patience(pipe: Any, seconds: float) -> None:
    """Let a ``recv`` of a connection fail after some time (BlockingIOError).

    ``poll`` before each would do, at the price of a tenth of a round trip.
    """
    whole = int(seconds)
    text = struct.pack("ll", whole, int((seconds - whole) * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, text)
