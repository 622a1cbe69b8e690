"""Verbosity: usual output, with -q important lines only, with -v also automatic choices."""

import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

QUIET, USUAL, VERBOSE = -1, 0, 1

_level = USUAL


@contextmanager
def speaking(level: int) -> Iterator[None]:
    """Set the verbosity of this process during a block."""
    global _level
    before, _level = _level, level
    try:
        yield
    finally:
        _level = before


def level() -> int:
    """Return the verbosity: ``QUIET``, ``USUAL`` or ``VERBOSE``."""
    return _level


def is_quiet() -> bool:
    """Return True if only important lines are printed."""
    return _level == QUIET


def note(*lines: str | None, error: bool = False) -> None:
    """Print useful lines, unless quiet; ``error`` prints to standard error."""
    stream = sys.stderr if error else sys.stdout
    for line in filter(None, () if is_quiet() else lines):
        print(wrap(line) if stream.isatty() else line, file=stream, flush=True)


def wrap(line: str, width: int = 0) -> str:
    """Wrap a line at spaces. A width of 0 is that of the terminal, which itself breaks words."""
    width = width or shutil.get_terminal_size().columns
    how: Any = {"break_long_words": False, "break_on_hyphens": False}
    return line if len(line) <= width else textwrap.fill(line, width, subsequent_indent="  ", **how)


def detail(line: str) -> None:
    """Print an automatic choice and its reason, with -v only."""
    if _level == VERBOSE:
        print(line, flush=True)
