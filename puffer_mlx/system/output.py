"""Standard output and error that may be lost: a closed pipe or terminal, a full disk.

Python raises where something happens to be printed: in the middle of the work, and as the fault of
an environment that prints. Here what can't be shown isn't shown, and is no one's fault.
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

PIPE_STATUS = 128 + signal.SIGPIPE  # what a shell gives for a program whose reader has left


class Lost(BaseException):
    """Standard output can't be written, and the program has nothing else to do.

    Not an ``Exception``: code that prints (an environment, say) has done nothing wrong.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error

    @property
    def unread(self) -> bool:
        """Whether the reader has left: no fault either, as in ``bench.py | head``."""
        return self.error.errno == errno.EPIPE


class Output:
    """A text stream; from its first fault on it takes everything and shows nothing.

    Args:
        stream: where to write.
        lost: is told of the fault, once.
    """

    def __init__(self, stream: Any, lost: Callable[[OSError], None]) -> None:
        self.stream, self.lost = stream, lost
        self.fault: OSError | None = None
        self._writing: set[int] = set()  # threads that are in the middle of it
        self._after: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def write(self, text: str) -> int:
        """Write, if that can be done; the number of characters either way."""
        self._attempt(self.stream.write, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """``write`` each."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Have written what was written, if that can be done."""
        self._attempt(self.stream.flush)

    def _attempt(self, what: Callable[..., Any], *arguments: Any) -> None:
        if self.fault:
            return
        thread = threading.get_ident()
        if thread in self._writing:  # a signal came in the middle, and its handler prints
            self._after.append((what, arguments))
            return
        self._writing.add(thread)
        try:
            what(*arguments)
            while self._after:
                what, arguments = self._after.pop(0)
                what(*arguments)
        except OSError as error:
            self.fault = error
            self._discard()
            self.lost(error)
        finally:
            self._writing.discard(thread)

    def _discard(self) -> None:
        """Have the null device take what is still buffered: Python writes that when it ends."""
        try:
            target = self.stream.fileno()
        except (OSError, ValueError, AttributeError):  # no file
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
    raise Lost(error)


def _ignore(_: OSError) -> None:
    pass


@contextmanager
def guarded() -> Iterator[None]:
    """A program's standard output, which raises ``Lost``, and standard error, which never raises.

    Closed ones become the null device, lest the next file that is opened takes their place. What
    the terminal's encoding lacks is shown as a question mark.
    """
    for name in "stdout", "stderr":
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        _encode_anything(getattr(sys, name))
    before = sys.stdout, sys.stderr
    out, err = Output(before[0], _raise), Output(before[1], _ignore)
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
    """Let this process's standard output and error never raise, from now on."""
    for name in "stdout", "stderr":
        if getattr(sys, name) is not None:
            _encode_anything(getattr(sys, name))
            setattr(sys, name, Output(getattr(sys, name), _ignore))


@contextmanager
def going_on(lost: Callable[[OSError], str]) -> Iterator[None]:
    """Below ``guarded``: let lost output raise nothing, since the work matters more.

    Args:
        lost: is told of it once, and returns a line for standard error.
    """
    out, err = sys.stdout, sys.stderr

    def tell(error: OSError) -> None:
        print(lost(error), file=err, flush=True)

    if not isinstance(out, Output):
        yield
        return
    before, out.lost = out.lost, tell
    try:
        yield
    finally:
        out.lost = before


def say(line: str) -> None:
    """Print a line that matters: on standard error where standard output is lost."""
    sys.stdout.flush()  # which may tell that it is
    lost = isinstance(sys.stdout, Output) and sys.stdout.fault
    print(line, file=sys.stderr if lost else sys.stdout, flush=True)
