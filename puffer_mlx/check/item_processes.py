"""Items run in a process of their own, so that one that dies or hangs is reported."""

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

END = "end"  # the name of an answer that tells how a process ended, if not well
LAST_WORDS = 20.0  # seconds that a process may take to end


class Answer(NamedTuple):
    """An item's answer.

    Args:
        name: the item.
        value: what its process said, from JSON; None if it died or didn't answer.
        death: how it ended then, in words; empty if it lives.
        seconds: all of it took.
    """

    name: str
    value: Any
    death: str
    seconds: float


class Named(Protocol):
    """An item."""

    @property
    def name(self) -> str:
        """A word."""
        ...


T = TypeVar("T", bound=Named)


def known(items: Sequence[T], names: list[str] | None) -> list[T]:
    """The items of these names, in their order; all without names.

    Raises:
        UserError: there is none of a name.
    """
    if not names:
        return list(items)
    table = {item.name: item for item in items}
    if wrong := [name for name in names if name not in table]:
        raise UserError(f"there is no item {wrong[0]!r}", f"there are {', '.join(table)}")
    return [item for item in items if item.name in names]


def answer_each(items: Sequence[T], judge: Callable[[T], object]) -> None:
    """In the process that ``answers`` started: judge items, a line of JSON on standard output each.

    What items themselves print goes to standard error.
    """
    with os.fdopen(os.dup(1), "w", buffering=1) as lines:
        os.dup2(2, 1)
        for item in items:
            lines.write(json.dumps(judge(item)) + "\n")


def answers(
    names: Sequence[str], command: Callable[[list[str], list[str]], list[str]], timeout: float
) -> Iterator[Answer]:
    """Each item's answer as it comes, from as many processes as that takes.

    Where the last process doesn't end as it should, one more, named ``END``, tells how.

    Args:
        names: the items.
        command: from the names that are left and those that ended a process to the words that start
            one, which writes a line of JSON to its standard output for each name that is left.
        timeout: seconds; an item that takes longer is ended.
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
                process.kill()  # does nothing to one that has ended


def _read(process: "subprocess.Popen[str]", lines: Lines) -> None:
    """A thread: the process's lines, then an empty one."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def _next(process: "subprocess.Popen[str]", lines: Lines, timeout: float) -> tuple[Any, str]:
    """The next answer and nothing, or None and how the process ended."""
    try:
        line = lines.get(timeout=timeout)
    except queue.Empty:
        return None, f"no answer after {timeout:g} seconds; ended"
    if line:
        return json.loads(line), ""
    return None, _cause(process.wait())


def _end(process: "subprocess.Popen[str]") -> str:
    """How a process that has no more to do ended, if not well."""
    try:
        code = process.wait(LAST_WORDS)
    except subprocess.TimeoutExpired:
        return f"the process was still there after {LAST_WORDS:g} seconds"
    return _cause(code) if code else ""


def _cause(code: int) -> str:
    if code < 0:
        return f"the process died of {signal.Signals(-code).name}"
    return f"the process ended itself, with exit code {code}"
