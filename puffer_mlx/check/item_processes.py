"""Run items in a separate process and report the ones that crash or hang."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from puffer_mlx.errors import UserError
from puffer_mlx.system.signals import ends_with_this

Lines: TypeAlias = "queue.SimpleQueue[str]"

END = "end"  # name of the answer that reports a failed exit
LAST_WORDS = 20.0  # timeout in seconds for a process to exit


class Answer(NamedTuple):
    """Result of an item.

    Args:
        name: Name of the item.
        value: Result from the process, decoded from JSON. None after a crash or timeout.
        death: Reason why the process ended, empty if it is running.
        seconds: Duration of the item.
    """

    name: str
    value: Any
    death: str
    seconds: float


class Named(Protocol):
    """An item with a name."""

    @property
    def name(self) -> str:
        """Name of the item, without spaces."""
        ...


T = TypeVar("T", bound=Named)


def known(items: Sequence[T], names: list[str] | None) -> list[T]:
    """Return the named items in their original order, or all items without names.

    Raises:
        UserError: If a name is unknown.
    """
    if not names:
        return list(items)
    table = {item.name: item for item in items}
    if wrong := [name for name in names if name not in table]:
        raise UserError(f"there is no item {wrong[0]!r}", f"there are {', '.join(table)}")
    return [item for item in items if item.name in names]


def answer_each(items: Sequence[T], judge: Callable[[T], object]) -> None:
    """Judge items and write one line of JSON per item to standard output.

    This runs in the process that ``answers`` starts. Output of the items goes to standard error.

    Args:
        items: Items to judge.
        judge: Maps an item to a value that JSON can encode.
    """
    with os.fdopen(os.dup(1), "w", buffering=1) as lines:
        os.dup2(2, 1)
        for item in items:
            lines.write(json.dumps(judge(item)) + "\n")


def answers(
    names: Sequence[str], command: Callable[[list[str], list[str]], list[str]], timeout: float
) -> Iterator[Answer]:
    """Yield the answer of each item, starting a new process after a crash or timeout.

    If the last process fails after its items, one more answer, named ``END``, contains the reason.

    Args:
        names: Names of the items.
        command: Maps the remaining names and the names that ended a process to a command line.
            The command writes one line of JSON to standard output per remaining name.
        timeout: Longest time for an item, in seconds. Slower items are stopped.
    """
    left, deadly = list(names), []
    while left:
        words = command(left, deadly)
        variables = {**os.environ, **ends_with_this()}
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=variables) as process:
            lines: Lines = queue.SimpleQueue()
            threading.Thread(target=_read, args=(process, lines), daemon=True).start()
            try:
                death = ""
                while left and not death:
                    began = time.perf_counter()
                    value, death = _next(process, lines, timeout)
                    yield Answer(left.pop(0), value, death, time.perf_counter() - began)
                    if death:
                        deadly.append(names[len(names) - len(left) - 1])
                if not death and (words := _end(process)):
                    yield Answer(END, None, words, 0.0)
            finally:
                process.kill()  # no effect after the process has ended


def _read(process: "subprocess.Popen[str]", lines: Lines) -> None:
    """Queue the lines of the process and then an empty one. Runs in a thread."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def _next(process: "subprocess.Popen[str]", lines: Lines, timeout: float) -> tuple[Any, str]:
    """Return the next value and an empty string, or None and the reason why there is no value."""
    try:
        line = lines.get(timeout=timeout)
    except queue.Empty:
        return None, f"no answer after {timeout:g} seconds; ended"
    if line:
        return json.loads(line), ""
    return None, _cause(process.wait())


def _end(process: "subprocess.Popen[str]") -> str:
    """Wait for a process to exit. Returns the reason for a failed exit, or an empty string."""
    try:
        code = process.wait(LAST_WORDS)
    except subprocess.TimeoutExpired:
        return f"the process was still there after {LAST_WORDS:g} seconds"
    return _cause(code) if code else ""


def _cause(code: int) -> str:
    if code < 0:
        return f"the process died of {signal.Signals(-code).name}"
    return f"the process ended itself, with exit code {code}"
