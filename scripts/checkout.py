"""Run a puffer-mlx command from a checkout of the repository, even if it isn't installed.

This file runs in any Python 3, so that it can report a Python that is too old.
"""

import importlib
import importlib.util
import os
import shlex
import sys

SCRIPTS = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(SCRIPTS)
VENV = os.path.join(ROOT, ".venv")  # `make` installs puffer_mlx there
OLDEST_PYTHON = 3, 11
REQUIRED_PACKAGES = "mlx", "nanobind", "numpy", "psutil", "rich"

# Other packages that import a module named train or import must not get the files of this folder.
sys.path[:] = [path for path in sys.path if not path or os.path.abspath(path) != SCRIPTS]


def run(module):
    """Run a command with the arguments of this process, and exit with its exit code.

    If this Python is too old or lacks a package, use the checkout's .venv, or print how to install.

    Args:
        module: Name of the command's module in puffer_mlx.cli.
    """
    if sys.version_info < OLDEST_PYTHON:
        version = ".".join(map(str, sys.version_info[:3]))
        _use_venv("Python 3.11 or newer is needed, this is " + version)
    missing = [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        _use_venv(f"{missing[0]} isn't installed in {sys.executable}")
    _find_package()
    command = importlib.import_module("puffer_mlx.cli." + module)
    sys.exit(command.main(sys.argv[1:]))


def _find_package():
    """Add the checkout to the import path of this process and its children, if not installed."""
    spec = importlib.util.find_spec("puffer_mlx")
    if spec and spec.origin and os.path.realpath(spec.origin).startswith(ROOT + os.sep):
        return
    sys.path.insert(0, ROOT)
    paths = [ROOT, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def _use_venv(reason):
    """Run this script with the checkout's .venv, or exit with an error that says how to install.

    Args:
        reason: Why this Python can't run the command.
    """
    python = os.path.join(VENV, "bin", "python")
    if os.path.isfile(python) and os.path.realpath(sys.prefix) != os.path.realpath(VENV):
        words = getattr(sys, "orig_argv", ["python", *sys.argv])[1:]
        os.execv(python, [python, *words])
    in_venv = sys.prefix != sys.base_prefix or "CONDA_PREFIX" in os.environ
    recent = sys.executable if sys.version_info >= OLDEST_PYTHON else "python3.12"
    steps = [] if in_venv else [[recent, "-m", "venv", VENV]]
    steps.append([sys.executable if in_venv else python, "-m", "pip", "install", "-e", ROOT])
    install = " && ".join(" ".join(map(shlex.quote, step)) for step in steps)
    sys.stderr.write(f"error: {reason}\n  hint: {install}\n")
    sys.exit(2)
