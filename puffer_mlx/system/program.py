"""Write commands: the one that started this program, those for hints, and new processes."""

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
    """Mark a block as running a command, so that hints name options instead of Python keywords."""
    global _is_command
    previous = _is_command
    _is_command = True
    try:
        yield
    finally:
        _is_command = previous


def is_command() -> bool:
    """Return True while a puffer-mlx command runs, False in a program that imports the package."""
    return _is_command


def python_command(*words: str) -> list[str]:
    """Return a command that runs this Python interpreter with arguments.

    ``-P`` removes the working directory from the import path, where a file ``random.py`` would
    replace the standard library's. ``import_string`` still finds the user's modules there.
    """
    return [sys.executable, "-P", *words]


def package_command(*words: str) -> list[str]:
    """Return a command that runs puffer-mlx with arguments in a new process."""
    return python_command("-m", "puffer_mlx", *words)


def command(name: str) -> str:
    """Return the command that a user types for a subcommand, written as this program was started.

    Examples: ``puffer-mlx train`` (also in notebooks and other programs), ``python -m puffer_mlx
    train``, ``python scripts/train.py``. If the shell doesn't find puffer-mlx by name, its path is
    used: ``.venv/bin/puffer-mlx train``.
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
    """Return True if a command's arguments contain ``-h`` or ``--help``."""
    return any(word in ("-h", "--help") for word in words)


def full_command_line() -> str:
    """Return the command line that started this program, quoted for a shell."""
    path = Path(sys.argv[0])
    if path.name == COMMAND:
        return shlex.join([COMMAND, *sys.argv[1:]])
    if path.name == "__main__.py" and path.parent.name == "puffer_mlx":
        return shlex.join(["python", "-m", "puffer_mlx", *sys.argv[1:]])
    return shlex.join(["python", *sys.argv])
