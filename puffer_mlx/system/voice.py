"""How much a program says: what is usual; with -q only what matters; with -v also what it chose."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
    for line in filter(None, () if is_quiet() else lines):
        print(line, file=sys.stderr if error else sys.stdout, flush=True)


def detail(line: str) -> None:
    """Print what was chosen, and why, for those who ask for it."""
    if _level == VERBOSE:
        print(line, flush=True)
