"""A run hides the echo of control keys, on a terminal of the test's own."""

import os
import pty
import subprocess
import sys
import termios

import pytest

from puffer_mlx.display.dashboard import disable_echo

PROGRAM = """
import fcntl, os, sys, termios
if sys.argv[1] == "foreground":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from puffer_mlx.display.dashboard import disable_echo
shown = lambda: bool(termios.tcgetattr(0)[3] & termios.ECHOCTL)
before = shown()
with disable_echo():
    inside = shown()
print(before, inside, shown())
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("place", "inside"),
    [("foreground", "False"), ("elsewhere", "True")],  # it isn't that process's terminal
)
def test_control_keys_are_hidden_during_a_run_in_the_foreground(place, inside):
    ours, its = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, place],
            stdin=its,
            capture_output=True,
            text=True,
            start_new_session=True,
            timeout=120,
        )
    finally:
        os.close(ours)
        os.close(its)
    assert done.stdout.split() == ["True", inside, "True"], done.stderr


def test_an_error_restores_the_terminal(monkeypatch):
    ours, its = pty.openpty()
    with os.fdopen(its, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
        before = termios.tcgetattr(stdin)
        with pytest.raises(ZeroDivisionError), disable_echo():
            assert termios.tcgetattr(stdin) != before
            raise ZeroDivisionError
        assert termios.tcgetattr(stdin) == before
    os.close(ours)


def test_without_a_terminal_nothing_changes(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with disable_echo():
        pass
