"""How much a program says: what is usual; with -q only what matters; with -v also what it chose."""

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
    """Say so much meanwhile, in this process."""
    global _level
    before, _level = _level, level
    try:
        yield
    finally:
        _level = before


def level() -> int:
    """How much is said: ``QUIET``, ``USUAL`` or ``VERBOSE``."""
    return _level


def is_quiet() -> bool:
    """Whether only what matters is to be said."""
    return _level == QUIET


def note(*lines: str | None, error: bool = False) -> None:
    """Print lines that are good to know, if there are any; ``error``: on standard error."""
    stream = sys.stderr if error else sys.stdout
    for line in filter(None, () if is_quiet() else lines):
        print(_broken(line) if stream.isatty() else line, file=stream, flush=True)


def _broken(line: str) -> str:
    """A line as a terminal should show it, which itself would break words."""
    width = shutil.get_terminal_size().columns
    how: Any = {"break_long_words": False, "break_on_hyphens": False}
    return line if len(line) <= width else textwrap.fill(line, width, subsequent_indent="  ", **how)


def detail(line: str) -> None:
    """Print what was chosen, and why, for those who ask for it."""
    if _level == VERBOSE:
        print(line, flush=True)
