"""Run a command from a checkout of puffer_mlx, installed or not.

This file runs in any Python 3, so that it can report what is missing.
"""

import importlib
import importlib.util
import os
import shlex
import sys

SCRIPTS = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(SCRIPTS)
VENV = os.path.join(ROOT, ".venv")  # `make` installs puffer_mlx there
OLDEST = 3, 11
NEEDED = "mlx", "nanobind", "numpy", "psutil", "rich"

# train.py, import.py and their neighbours must not be imported for modules of those names.
sys.path[:] = [path for path in sys.path if not path or os.path.abspath(path) != SCRIPTS]


def run(module):
    """Run a command with the arguments of this process, and exit with its code.

    If this Python lacks something, run it in the checkout's .venv, or print how to install it.

    Args:
        module: The command's module in puffer_mlx.cli.
    """
    if sys.version_info < OLDEST:
        version = ".".join(map(str, sys.version_info[:3]))
        _leave("Python 3.11 or newer is needed, this is " + version)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        _leave(f"{missing[0]} isn't installed in {sys.executable}")
    _find_package()
    command = importlib.import_module("puffer_mlx.cli." + module)
    sys.exit(command.main(sys.argv[1:]))


def _find_package():
    """Put the checkout on the path of this process and of its children, if it isn't installed."""
    found = importlib.util.find_spec("puffer_mlx")
    if found and found.origin and os.path.realpath(found.origin).startswith(ROOT + os.sep):
        return
    sys.path.insert(0, ROOT)
    paths = [ROOT, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def _leave(reason):
    """Continue in the checkout's .venv, or exit with an error that says how to install."""
    python = os.path.join(VENV, "bin", "python")
    if os.path.isfile(python) and os.path.realpath(sys.prefix) != os.path.realpath(VENV):
        words = getattr(sys, "orig_argv", ["python", *sys.argv])[1:]
        os.execv(python, [python, *words])
    ours = sys.prefix != sys.base_prefix or "CONDA_PREFIX" in os.environ
    recent = sys.executable if sys.version_info >= OLDEST else "python3.12"
    steps = [] if ours else [[recent, "-m", "venv", VENV]]
    steps.append([sys.executable if ours else python, "-m", "pip", "install", "-e", ROOT])
    install = " && ".join(" ".join(map(shlex.quote, step)) for step in steps)
    sys.stderr.write(f"error: {reason}\n  hint: {install}\n")
    sys.exit(2)
