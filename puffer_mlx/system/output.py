"""Standard output and error that may fail: a closed pipe or terminal, a full disk.

Python raises at the failing print: in the middle of the work, or as an error of an environment that
prints. These streams discard the text instead.
"""

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PIPE_STATUS = 128 + signal.SIGPIPE  # a shell's status of a program whose reader has left


class OutputLost(BaseException):
    """Standard output can't be written, and the program has nothing else to do.

    Not an ``Exception``, because it is no error of the code that prints, such as an environment.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error

    @property
    def unread(self) -> bool:
        """True if the reader has left, which is no error: ``bench.py | head``."""
        return self.error.errno == errno.EPIPE


class GuardedStream:
    """Text stream that discards everything after its first error.

    Args:
        stream: Stream to write to.
        lost: Called once with the error.
    """

    def __init__(self, stream: Any, lost: Callable[[OSError], None]) -> None:
        self.stream, self.lost = stream, lost
        self.error: OSError | None = None
        self._writing: set[int] = set()  # threads that are writing
        self._after: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def write(self, text: str) -> int:
        """Write the text unless the stream has failed. Return the number of characters."""
        self._attempt(self.stream.write, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream unless it has failed."""
        self._attempt(self.stream.flush)

    def _attempt(self, what: Callable[..., Any], *arguments: Any) -> None:
        if self.error:
            return
        thread = threading.get_ident()
        if thread in self._writing:  # a signal's handler prints during a write
            self._after.append((what, arguments))
            return
        self._writing.add(thread)
        try:
            what(*arguments)
            while self._after:
                what, arguments = self._after.pop(0)
                what(*arguments)
        except OSError as error:
            self.error = error
            self._discard()
            self.lost(error)
        finally:
            self._writing.discard(thread)

    def _discard(self) -> None:
        """Redirect buffered text to the null device, since Python flushes it at exit."""
        try:
            target = self.stream.fileno()
        except (OSError, ValueError, AttributeError):  # not a file
            return
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, target)
        os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _encode_anything(stream: Any) -> None:
    if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
        stream.reconfigure(errors="replace")


def _raise(error: OSError) -> None:
    raise OutputLost(error)


def _ignore(_: OSError) -> None:
    pass


@contextmanager
def guard_streams() -> Iterator[None]:
    """Make a failed standard output raise ``OutputLost``, and standard error never raise.

    Closed streams become the null device, so that the next opened file doesn't replace them.
    Characters that the terminal's encoding lacks are shown as a question mark.
    """
    for name in "stdout", "stderr":
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        _encode_anything(getattr(sys, name))
    before = sys.stdout, sys.stderr
    out, err = GuardedStream(before[0], _raise), GuardedStream(before[1], _ignore)
    sys.stdout, sys.stderr = out, err  # type: ignore
    try:
        yield
        out.flush()
    finally:
        out.lost = _ignore
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before


def never_raise() -> None:
    """Make this process's standard output and error never raise again."""
    for name in "stdout", "stderr":
        if getattr(sys, name) is not None:
            _encode_anything(getattr(sys, name))
            setattr(sys, name, GuardedStream(getattr(sys, name), _ignore))


@contextmanager
def continue_if_lost(lost: Callable[[OSError], str]) -> Iterator[None]:
    """Discard lost output without raising during a block inside ``guard_streams``.

    Args:
        lost: Called once with the error; returns a line for standard error.
    """
    out, err = sys.stdout, sys.stderr

    def tell(error: OSError) -> None:
        print(lost(error), file=err, flush=True)

    if not isinstance(out, GuardedStream):
        yield
        return
    before, out.lost = out.lost, tell
    try:
        yield
    finally:
        out.lost = before


def print_important(line: str) -> None:
    """Print an important line; on standard error if standard output is lost."""
    sys.stdout.flush()  # the flush may find that it is lost
    lost = isinstance(sys.stdout, GuardedStream) and sys.stdout.error
    print(line, file=sys.stderr if lost else sys.stdout, flush=True)


_result = ""  # text for standard output at the end of ``only_result``


def set_result(text: str) -> None:
    """Set the text that ``only_result`` will print."""
    global _result
    _result = text


@contextmanager
def only_result() -> Iterator[None]:
    """Send all that is printed in a block to standard error, C code's and children's text too.

    After the block, the text of ``set_result`` is printed to standard output.
    """
    set_result("")
    out = sys.stdout
    out.flush()
    try:
        number, error = out.fileno(), sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):  # not files, in a test or a notebook
        number = error = -1
    kept = os.dup(number) if number >= 0 else -1
    try:
        if kept >= 0:
            os.dup2(error, number)
        sys.stdout = sys.stderr
        yield
    finally:
        sys.stdout = out
        if kept >= 0:
            os.dup2(kept, number)
            os.close(kept)
    out.write(_result)
    out.flush()
