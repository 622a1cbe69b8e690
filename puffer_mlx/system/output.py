"""Guard standard output and error against a closed pipe or terminal and a full disk.

Python raises an error at the print that fails: in the middle of the work, or as an error of an
environment that prints. The guarded streams discard the text instead.
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

PIPE_STATUS = 128 + signal.SIGPIPE  # exit status of a program that a broken pipe ended


class OutputLost(BaseException):
    """Raised if standard output can't be written, to end the program.

    It isn't an ``Exception``, so code that prints, such as an environment, doesn't catch it.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error

    @property
    def is_pipe_closed(self) -> bool:
        """True if standard output is a pipe whose reader has ended, as in ``bench.py | head``."""
        return self.error.errno == errno.EPIPE


class GuardedStream:
    """Text stream that discards all text after its first write error.

    Args:
        stream: Stream to write to.
        on_error: Called once with the error.
    """

    def __init__(self, stream: Any, on_error: Callable[[OSError], None]) -> None:
        self.stream = stream
        self.on_error = on_error
        self.error: OSError | None = None
        self._writing: set[int] = set()  # IDs of threads that are writing
        self._deferred: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def write(self, text: str) -> int:
        """Write text to the stream unless it failed before. Returns the number of characters."""
        self._attempt(self.stream.write, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write lines to the stream unless it failed before."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream unless it failed before."""
        self._attempt(self.stream.flush)

    def _attempt(self, method: Callable[..., Any], *arguments: Any) -> None:
        """Call a method of the stream, and discard all further output if it fails.

        If this thread is already writing, as when a signal's handler prints, the method is called
        after that write.
        """
        if self.error:
            return
        thread = threading.get_ident()
        if thread in self._writing:  # a signal's handler prints during a write
            self._deferred.append((method, arguments))
            return
        self._writing.add(thread)
        try:
            method(*arguments)
            while self._deferred:
                method, arguments = self._deferred.pop(0)
                method(*arguments)
        except OSError as error:
            self.error = error
            self._discard()
            self.on_error(error)
        finally:
            self._writing.discard(thread)

    def _discard(self) -> None:
        """Send the failed stream's buffered text to the null device.

        Otherwise Python's flush at exit would fail.
        """
        try:
            target = self.stream.fileno()
        except (OSError, ValueError, AttributeError):  # not a file
            return
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, target)
        os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _replace_unencodable(stream: Any) -> None:
    """Make a text stream print "?" for characters that its encoding can't represent."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
        stream.reconfigure(errors="replace")


def _raise(error: OSError) -> None:
    raise OutputLost(error)


def _ignore(_: OSError) -> None:
    pass


@contextmanager
def guard_streams() -> Iterator[None]:
    """Handle write errors of standard output and error in a block.

    A failed standard output raises ``OutputLost``; a failed standard error is ignored.

    Streams that are closed become the null device, because the next file that is opened would get
    their descriptors. Characters that the terminal's encoding lacks are printed as question marks.
    """
    for name in "stdout", "stderr":
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        _replace_unencodable(getattr(sys, name))
    previous = sys.stdout, sys.stderr
    out = GuardedStream(sys.stdout, _raise)
    err = GuardedStream(sys.stderr, _ignore)
    sys.stdout, sys.stderr = out, err  # type: ignore
    try:
        yield
        out.flush()
    finally:
        out.on_error = _ignore
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = previous


def never_raise() -> None:
    """Make this process's standard output and error discard text that can't be written."""
    for name in "stdout", "stderr":
        if getattr(sys, name) is not None:
            _replace_unencodable(getattr(sys, name))
            setattr(sys, name, GuardedStream(getattr(sys, name), _ignore))


@contextmanager
def continue_if_lost(on_error: Callable[[OSError], str]) -> Iterator[None]:
    """In a block, continue without output if standard output fails, instead of ending.

    The block must be inside ``guard_streams``.

    Args:
        on_error: Called once with the error; returns a line for standard error.
    """
    out = sys.stdout
    err = sys.stderr

    def report(error: OSError) -> None:
        print(on_error(error), file=err, flush=True)

    if not isinstance(out, GuardedStream):
        yield
        return
    previous = out.on_error
    out.on_error = report
    try:
        yield
    finally:
        out.on_error = previous


def print_important(line: str) -> None:
    """Print an important line to standard output, or to standard error if output has failed."""
    sys.stdout.flush()  # may notice that standard output has failed
    has_failed = isinstance(sys.stdout, GuardedStream) and sys.stdout.error
    print(line, file=sys.stderr if has_failed else sys.stdout, flush=True)


_result = ""  # printed at the end of ``print_only_result``


def set_result(text: str) -> None:
    """Set the text that ``print_only_result`` prints to standard output when its block ends."""
    global _result
    _result = text


@contextmanager
def print_only_result() -> Iterator[None]:
    """Redirect standard output to standard error in a block, also for C code and child processes.

    After the block, the text passed to ``set_result`` is printed to standard output.
    """
    set_result("")
    out = sys.stdout
    out.flush()
    try:
        output_fd, error_fd = out.fileno(), sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):  # not files, in a test or a notebook
        output_fd = error_fd = -1
    saved_fd = os.dup(output_fd) if output_fd >= 0 else -1
    try:
        if saved_fd >= 0:
            os.dup2(error_fd, output_fd)
        sys.stdout = sys.stderr
        yield
    finally:
        sys.stdout = out
        if saved_fd >= 0:
            os.dup2(saved_fd, output_fd)
            os.close(saved_fd)
    out.write(_result)
    out.flush()
