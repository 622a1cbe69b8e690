"""The verbosity of this process (-q, -v), and printing that depends on it."""

import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

QUIET = -1  # important lines only
NORMAL = 0
VERBOSE = 1  # also what was chosen automatically, and why

_level = NORMAL


@contextmanager
def set_for_block(level: int) -> Iterator[None]:
    """Set the verbosity of this process during a with block."""
    global _level
    previous = _level
    _level = level
    try:
        yield
    finally:
        _level = previous


def level() -> int:
    """Return the verbosity of this process: ``QUIET``, ``NORMAL`` or ``VERBOSE``."""
    return _level


def is_quiet() -> bool:
    """Return True if only important lines are printed (-q)."""
    return _level == QUIET


def note(*lines: str | None, error: bool = False) -> None:
    """Print informative lines unless the verbosity is quiet (-q).

    Args:
        lines: Lines to print; empty ones and None are skipped. Wrapped on a terminal.
        error: Print to standard error.
    """
    stream = sys.stderr if error else sys.stdout
    for line in filter(None, () if is_quiet() else lines):
        print(wrap(line) if stream.isatty() else line, file=stream, flush=True)


def wrap(line: str, width: int = 0) -> str:
    """Wrap a line of text at spaces, to the terminal's width if ``width`` is 0."""
    width = width or shutil.get_terminal_size().columns
    options: Any = {"break_long_words": False, "break_on_hyphens": False}
    if len(line) <= width:
        return line
    return textwrap.fill(line, width, subsequent_indent="  ", **options)


def detail(line: str) -> None:
    """Print an automatic choice and its reason if the verbosity is verbose (-v)."""
    if _level == VERBOSE:
        print(line, flush=True)
