"""PufferLib 3.x's environments in this process, or in several: one group of agents.

``Here`` and ``Workers`` are alike. Agents and instances are numbered through over the processes, so
both give the same rows.

Processes share the buffers' memory with the trainer. They are forked from a server that has nothing
of the trainer in it, or started anew where forking is no good (macOS). They ignore Ctrl-C, which
the trainer answers, and end with it.
"""

import multiprocessing
import pickle
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.processes import CONTEXT, begin_child, how_it_ended, starting_children
from puffer_mlx.vec.puffer.buffers import Buffers
from puffer_mlx.vec.puffer.instances import Fact, Instances
from puffer_mlx.vec.puffer.make import Makes
from puffer_mlx.vec.python_faults import RAISED, told

__all__ = ["Here", "Workers"]

_MAKING = 4.0  # times vec.timeout: there is much to import, and all processes do so at once
_GRACE = 5.0  # seconds that environments have to close
_CLOSING = "close"


class Here:
    """A group whose environments step in this process, one after another.

    Args:
        layout: of its buffers: ``Buffers.layout``.
        arguments: ``Instances``' own but for the buffers.

    Attributes:
        buffers: of the group's agents.
        seconds: that environments have spent in steps.
    """

    def __init__(self, layout: dict[str, Any], **arguments: Any) -> None:
        self.seconds = 0.0
        self.buffers = Buffers(**{key: np.zeros(*kind) for key, kind in layout.items()})
        self._instances = Instances(buffers=self.buffers, **arguments)

    def reset(self, seed: int) -> None:
        """Begin anew."""
        self._instances.reset(seed)

    def begin(self) -> None:
        """Nothing: the step is taken in ``finish``."""

    def finish(self) -> list[Fact]:
        """Step; the buffers hold the result."""
        began = time.perf_counter()
        facts = self._instances.step()
        self.seconds += time.perf_counter() - began
        return facts

    def render(self) -> Any:
        """What the first environment draws."""
        return self._instances.render()

    def close(self) -> None:
        """Close the environments."""
        self._instances.close()


class Workers:
    """A group whose environments step in W processes, each with as many of them.

    Args:
        layout: of the group's buffers: ``Buffers.layout``.
        workers: W.
        timeout: seconds after which a process hangs.
        count, number: of instances, as ``Instances``' for the whole group; W divides ``count``.
        arguments: the others of ``Instances``.

    Attributes:
        buffers: of the group's agents.
        seconds: that environments have spent in steps, all processes together.

    Raises:
        UserError: the environments can't be made, or not in another process.
    """

    def __init__(
        self,
        layout: dict[str, Any],
        *,
        workers: int,
        timeout: float,
        count: int,
        number: int,
        recipe: Makes,
        **arguments: Any,
    ) -> None:
        self.seconds = 0.0
        self._name, self._timeout = recipe.name, timeout
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        context: Any = multiprocessing.get_context(CONTEXT)
        context.set_forkserver_preload([__name__])
        memory = {key: context.RawArray("b", _bytes(*kind)) for key, kind in layout.items()}
        self.buffers = _view(memory, layout)
        self._n = len(self.buffers.rewards) // workers
        self._count, self._number = count // workers, number
        pickled = _pickled(recipe)
        try:
            for w in range(workers):
                agents = slice(w * self._n, (w + 1) * self._n)
                first = number + w * self._count
                rest = {**arguments, "count": self._count, "number": first}
                pipe, end = context.Pipe()
                process = context.Process(
                    target=_work,
                    args=(recipe.name, end, pickled, memory, layout, agents, rest),
                    daemon=True,
                )
                with starting_children():
                    process.start()
                end.close()
                self._pipes.append(pipe)
                self._processes.append(process)
            self._answers("made", _MAKING * timeout)
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int) -> None:
        """Begin anew."""
        self._ask("reset", seed)
        self._answers("reset")

    def begin(self) -> None:
        """Begin a step with the actions in the buffers."""
        self._ask("step")

    def finish(self) -> list[Fact]:
        """Wait for the step; the buffers hold the result."""
        facts = []
        for w, (found, seconds) in enumerate(self._answers("stepped")):
            self.seconds += seconds
            facts += [
                fact._replace(agent=fact.agent + w * self._n) if fact.agent >= 0 else fact
                for fact in found
            ]
        return facts

    def render(self) -> Any:
        """What the first environment draws."""
        self._pipes[0].send(("render", ()))
        return self._answer(0, "drawn")

    def close(self) -> None:
        """End all processes: politely, then not. None is left when this returns."""
        pipes, self._pipes = self._pipes, []
        for pipe in pipes:
            with suppress(OSError):  # it is dead already
                pipe.send((_CLOSING, ()))
        deadline = time.monotonic() + _GRACE
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in pipes:
            pipe.close()
        self._processes = []

    def _ask(self, what: str, *arguments: Any) -> None:
        for w, pipe in enumerate(self._pipes):
            try:
                pipe.send((what, arguments))
            except OSError:
                raise self._died(w) from None

    def _answers(self, what: str, seconds: float | None = None) -> list[Any]:
        return [self._answer(w, what, seconds) for w in range(len(self._pipes))]

    def _answer(self, w: int, what: str, seconds: float | None = None) -> Any:
        pipe, seconds = self._pipes[w], seconds or self._timeout
        try:
            if not pipe.poll(seconds):
                raise UserError(
                    f"{self._name}: {self._which(w)} were not {what} within "
                    f"{seconds:g} seconds (vec.timeout)",
                    "raise vec.timeout if they are only slow",
                )
            result, error = pipe.recv()
        except (EOFError, OSError):
            raise self._died(w) from None
        if error is not None:
            raise UserError(*error)
        return result

    def _died(self, w: int) -> UserError:
        process = self._processes[w]
        process.join(1.0)
        code = process.exitcode
        how = how_it_ended(code or 0)
        return UserError(
            f"{self._name}: the process of {self._which(w)} {how}",
            "vec.backend = sync shows whether the environment crashes in this process too",
        )

    def _which(self, w: int) -> str:
        first = self._number + w * self._count
        return f"environments {first} to {first + self._count - 1}"


def _work(
    name: str,
    pipe: Connection,
    pickled: bytes,
    memory: dict[str, Any],
    layout: dict[str, Any],
    agents: slice,
    arguments: dict[str, Any],
) -> None:
    """A process: make environments, and do what is asked until it is told to close."""
    begin_child()
    group = None
    try:
        buffers = _view(memory, layout).part(agents)
        group = _Remote(Instances(pickle.loads(pickled), buffers, **arguments))
        pipe.send((None, None))
        while True:
            what, given = pipe.recv()
            if what == _CLOSING:
                break
            pipe.send((getattr(group, what)(*given), None))
    except EOFError:  # the trainer is gone
        pass
    except UserError as error:
        pipe.send((None, (error.message, error.hint)))
    except RAISED as error:  # what makes them can't be read, or a result not be sent
        pipe.send((None, (f"{name}: a process of environments failed: {told(error)}", "")))
    finally:
        if group is not None:
            group.close()


class _Remote:
    """What a process answers with."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self.reset, self.close = instances.reset, instances.close
        self.render = instances.render

    def step(self) -> tuple[list[Fact], float]:
        began = time.perf_counter()
        facts = self._instances.step()
        return facts, time.perf_counter() - began


def _bytes(shape: tuple[int, ...], dtype: Any) -> int:
    return int(np.prod(shape)) * np.dtype(dtype).itemsize


def _view(memory: dict[str, Any], layout: dict[str, Any]) -> Buffers:
    """Arrays in shared memory."""
    return Buffers(
        **{
            key: np.frombuffer(memory[key], dtype).reshape(shape)
            for key, (shape, dtype) in layout.items()
        }
    )


def _pickled(recipe: Makes) -> bytes:
    try:
        import cloudpickle as pickler  # comes with Gymnasium; takes the main script's functions too
    except ImportError:
        pickler = pickle
    try:
        return pickler.dumps(recipe)
    except Exception as error:
        raise UserError(
            f"{recipe.name}: what makes it can't be sent to another process: {error}",
            "name a class or function of a module, or set vec.backend to sync",
        ) from None
