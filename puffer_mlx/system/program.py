"""The command that started this program, for help and for hints on what to type next."""

import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

COMMAND = "puffer-mlx"  # installed by the wheel
_is_command = False


@contextmanager
def running_command() -> Iterator[None]:
    """Note that a command runs in a block: hints name its options instead of Python's keywords."""
    global _is_command
    before = _is_command
    _is_command = True
    try:
        yield
    finally:
        _is_command = before


def is_command() -> bool:
    """Return True while a command runs, False in a program that uses the package."""
    return _is_command


def python(*words: str) -> list[str]:
    """Return the words that start this Python again.

    ``-P`` removes the working directory from the import path, where a ``random.py`` would replace
    the standard library's. ``import_string`` finds modules named by the configuration.
    """
    return [sys.executable, "-P", *words]


def of_package(*words: str) -> list[str]:
    """Return the words that start this package's command in a new process."""
    return python("-m", "puffer_mlx", *words)


def command(name: str) -> str:
    """Return the command to type for a subcommand, in the form that started this program.

    The forms are ``puffer-mlx train``, ``python -m puffer_mlx train`` and ``python
    scripts/train.py``. Notebooks and other programs get the first one, commands that the shell
    doesn't find by name their path: ``.venv/bin/puffer-mlx train``. ``list`` has no script.
    """
    path = Path(sys.argv[0])
    if path.name == "__main__.py" and path.parent.name == "puffer_mlx":
        return f"python -m puffer_mlx {name}"
    script = path.with_name(name.replace("-", "_") + ".py")
    if path.suffix == ".py" and path.parent.name == "scripts" and script.is_file():
        return shlex.join(["python", str(script)])
    if path.name == COMMAND and not shutil.which(COMMAND):
        return f"{shlex.quote(str(path))} {name}"
    return f"{COMMAND} {name}"


def asks_for_help(words: Iterable[str]) -> bool:
    """Return True if one of a command's words is ``-h`` or ``--help``."""
    return any(word in ("-h", "--help") for word in words)


def typed() -> str:
    """Return the command line that started this program, to be typed again."""
    path = Path(sys.argv[0])
    if path.name == COMMAND:
        return shlex.join([COMMAND, *sys.argv[1:]])
    if path.name == "__main__.py" and path.parent.name == "puffer_mlx":
        return shlex.join(["python", "-m", "puffer_mlx", *sys.argv[1:]])
    return shlex.join(["python", *sys.argv])
