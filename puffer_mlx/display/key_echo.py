"""Ctrl-C without its ``^C``: what a terminal shows of control keys would stand in the picture.

The terminal writes it where the cursor is, behind the last character of what was drawn. In a
picture as wide as the window that begins a new line, and the next drawing misses its first one.
"""

import contextlib
import os
import sys
import termios
from collections.abc import Iterator

_LOCAL_FLAGS = 3  # where they are in what ``tcgetattr`` returns


@contextlib.contextmanager
def control_keys_unshown() -> Iterator[None]:
    """Have standard input's terminal not show control keys during a block, if it is one."""
    shown = _set_shown(False)
    try:
        yield
    finally:
        if shown:
            _set_shown(True)


def _set_shown(shown: bool) -> bool:
    """Whether they were shown before. A process in the background leaves a terminal alone.

    The kernel would stop it for trying.
    """
    try:
        terminal = sys.stdin.fileno()
        if os.tcgetpgrp(terminal) != os.getpgrp():
            return False
        modes = termios.tcgetattr(terminal)
        before = bool(modes[_LOCAL_FLAGS] & termios.ECHOCTL)
        modes[_LOCAL_FLAGS] &= ~termios.ECHOCTL
        modes[_LOCAL_FLAGS] |= termios.ECHOCTL if shown else 0
        termios.tcsetattr(terminal, termios.TCSANOW, modes)
        return before
    except (OSError, ValueError, AttributeError, termios.error):  # closed, or no terminal
        return False
