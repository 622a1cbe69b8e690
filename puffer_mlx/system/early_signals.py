"""End a command at Ctrl-C while its modules are still being imported, without a traceback.

Without this handler, Python would raise a KeyboardInterrupt in the middle of an import, where a
callback may ignore it or C code may turn it into another error. The process can be ended at once,
because there is nothing to save yet. ``signals.watch_signals`` later replaces this handler.
Programs that import the package as a library keep their handlers.

This module is imported before all others, so it imports little.
"""

import os
import signal
import sys
from contextlib import contextmanager

STATUS = 128 + signal.SIGINT


def started_as_command() -> bool:
    """Return True if this process was started as a puffer-mlx command.

    That is ``puffer-mlx``, ``python -m puffer_mlx`` or a file in ``scripts``.
    """
    called = sys.argv[0] if getattr(sys, "argv", None) else ""
    if called == "-m":  # the module's name is not in argv yet
        # Words: python -m NAME, -mNAME or -umNAME, then one word for each of argv[1:].
        words = sys.orig_argv[-len(sys.argv) :]
        word = words[0] if words else ""
        module = word.partition("m")[2] if word.startswith("-") else word
        return module.partition(".")[0] == "puffer_mlx"
    if not os.path.isfile(called):  # interactive Python, or -c
        return False
    folder, name = os.path.split(os.path.realpath(called))
    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    scripts = os.path.join(os.path.dirname(package), "scripts")
    return name == "puffer-mlx" or folder in (package, scripts)


def end_at_ctrl_c() -> None:
    """Make Ctrl-C end this puffer-mlx command at once, if Python's default handler is set."""
    if started_as_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


@contextmanager
def raise_at_ctrl_c():
    """Let a block clean up at Ctrl-C, which raises a KeyboardInterrupt; then end the process.

    Without effect unless ``end_at_ctrl_c`` has set the handler.
    """
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
