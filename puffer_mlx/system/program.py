"""The command that started this program, for help and for hints on what to type next."""

import shlex
import sys
from pathlib import Path

COMMAND = "puffer-mlx"  # installed by the wheel


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
    scripts/train.py``. Notebooks and other programs get the first one. ``list`` has no script.
    """
    path = Path(sys.argv[0])
    if path.name == "__main__.py" and path.parent.name == "puffer_mlx":
        return f"python -m puffer_mlx {name}"
    script = path.with_name(name.replace("-", "_") + ".py")
    if path.suffix == ".py" and path.parent.name == "scripts" and script.is_file():
        return shlex.join(["python", str(script)])
    return f"{COMMAND} {name}"


def typed() -> str:
    """Return the command line that started this program, to be typed again."""
    path = Path(sys.argv[0])
    if path.name == COMMAND:
        return shlex.join([COMMAND, *sys.argv[1:]])
    if path.name == "__main__.py" and path.parent.name == "puffer_mlx":
        return shlex.join(["python", "-m", "puffer_mlx", *sys.argv[1:]])
    return shlex.join(["python", *sys.argv])
