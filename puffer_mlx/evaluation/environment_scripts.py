"""Load the Python files of a C environment: ``draw.py`` and ``bot.py``."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from puffer_mlx.errors import UserError


def load_script_function(
    path: Path, name: str, missing_error: UserError, signature: str
) -> Callable[..., Any]:
    """Load a Python script that belongs to an environment. Returns one of its functions.

    Args:
        path: Path of the script.
        name: Name of the function.
        missing_error: Exception to raise if the script doesn't exist.
        signature: Signature of the function, shown as a hint if the function is missing.

    Raises:
        UserError: If the file or the function is missing.
    """
    if not path.is_file():
        raise missing_error
    spec = importlib.util.spec_from_file_location(
        f"puffer_mlx_{path.stem}_{path.parent.name}", path
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{path} defines no function {name}", signature)
    return function
