"""Ctrl-C while a command is imported: it ends the process at once, without a traceback.

Nothing is to be saved yet. A KeyboardInterrupt would come up in the middle of some import, where C
code makes another error of it, and callbacks of Python's own lose it. ``signals.watched`` takes
over. Programs that import the package as a library keep their own handlers.

Imported before anything else, so this imports little.
"""

import os
import signal
import sys
from contextlib import contextmanager

STATUS = 128 + signal.SIGINT


def is_command() -> bool:
    """Return True if this is ``puffer-mlx``, ``python -m puffer_mlx`` or a file of ``scripts``."""
    called = sys.argv[0] if getattr(sys, "argv", None) else ""
    if called == "-m":  # Python hasn't found the module yet; the word before the arguments has it
        word = "".join(sys.orig_argv[-len(sys.argv) :][:1])
        module = word.partition("m")[2] if word.startswith("-") else word  # -mNAME, -umNAME
        return module.partition(".")[0] == "puffer_mlx"
    if not os.path.isfile(called):  # an interactive Python's, or -c
        return False
    folder, name = os.path.split(os.path.realpath(called))
    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    scripts = os.path.join(os.path.dirname(package), "scripts")
    return name == "puffer-mlx" or folder in (package, scripts)


def end_at_ctrl_c() -> None:
    """Have Ctrl-C end this process, if it is a command and nobody else handles Ctrl-C."""
    if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


@contextmanager
def interruptible():
    """A block that has something to clean up: Ctrl-C is a KeyboardInterrupt until its end."""
    if signal.getsignal(signal.SIGINT) is not _end:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        _end()
    finally:
        signal.signal(signal.SIGINT, _end)


def _end(*_: object) -> None:
    os.write(2, b"stopped\n")
    os._exit(STATUS)
