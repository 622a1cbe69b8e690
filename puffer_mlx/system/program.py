"""How this program was started, for help and for messages that say what to type next."""

import shlex
import sys
from pathlib import Path

COMMAND = "puffer-mlx"  # what the wheel installs


def python(*words: str) -> list[str]:
    """The words that start this Python anew.

    Files of the working folder are none of its modules: a ``random.py`` would be imported for the
    library's own. ``import_string`` finds those that the configuration names.
    """
    return [sys.executable, "-P", *words]


def of_package(*words: str) -> list[str]:
    """The words of this package's command in a process of its own."""
    return python("-m", "puffer_mlx", *words)


def command(name: str) -> str:
    """What a person types for a subcommand, in the way that started this program.

    ``puffer-mlx train``, ``python -m puffer_mlx train`` or ``python scripts/train.py``; the first
    in a notebook and in a program of somebody else's, too. ``list`` has no script.
    """
    path = Path(sys.argv[0])
    if path.name == "__main__.py" and path.parent.name == "puffer_mlx":
        return f"python -m puffer_mlx {name}"
    script = path.with_name(name.replace("-", "_") + ".py")
    if path.suffix == ".py" and path.parent.name == "scripts" and script.is_file():
        return shlex.join(["python", str(script)])
    return f"{COMMAND} {name}"


def typed() -> str:
    """The whole command line that started this program, as it can be typed again."""
    path = Path(sys.argv[0])
    if path.name == COMMAND:
        return shlex.join([COMMAND, *sys.argv[1:]])
    if path.name == "__main__.py" and path.parent.name == "puffer_mlx":
        return shlex.join(["python", "-m", "puffer_mlx", *sys.argv[1:]])
    return shlex.join(["python", *sys.argv])
