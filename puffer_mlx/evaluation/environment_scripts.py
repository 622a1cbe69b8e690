"""Load the Python files of a C environment: ``draw.py`` and ``bot.py``."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from puffer_mlx.errors import UserError


def script_function(
    path: Path, name: str, missing: UserError, signature: str
) -> Callable[..., Any]:
    """Return a function from an environment's script.

    Args:
        path: Path of the script.
        name: Name of the function.
        missing: Exception to raise if the script doesn't exist.
        signature: Signature of the function, used as the hint.

    Raises:
        UserError: If the file or the function is missing.
    """
    if not path.is_file():
        raise missing
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
