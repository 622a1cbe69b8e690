"""Python files beside an environment in C: ``draw.py`` and ``bot.py``."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from puffer_mlx.errors import UserError


def script_function(
    path: Path, name: str, missing: UserError, signature: str
) -> Callable[..., Any]:
    """A function of an environment's script.

    Args:
        path: the script.
        name: of the function.
        missing: raised if there is no such file.
        signature: of the function, for a hint.

    Raises:
        UserError: the file or the function is missing.
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
