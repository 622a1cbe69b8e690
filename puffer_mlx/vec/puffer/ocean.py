"""Names of PufferLib 3.x's environments: ``pufferlib:puffer_breakout``.

The names are read from the text of PufferLib's module. Importing it takes seconds, needs PyTorch,
and makes a link ``resources`` in the working directory. Constructors are looked up here, because
``env_creator`` of PufferLib 3.0 returns a text for environments whose C code isn't compiled.
"""

import ast
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from puffer_mlx.errors import UserError
from puffer_mlx.system.import_string import nearest
from puffer_mlx.vec.python_faults import RAISED, describe

PREFIX = "pufferlib:"
_BEGINNING = "puffer_"  # of its names
_TABLE = "MAKE_FUNCTIONS"  # in the module
_MODULE = "pufferlib.ocean.environment"


def names() -> list[str]:
    """Return the names in the installed PufferLib, such as ``puffer_breakout``; [] without it."""
    spec = importlib.util.find_spec("pufferlib")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "ocean", "environment.py")
        if path.is_file():
            return sorted(_BEGINNING + key for key in _keys(path.read_text(encoding="utf-8")))
    return []


def find(name: str) -> Callable[..., Any]:
    """Return the constructor of ``pufferlib:NAME``: a class, or a function of its emulation.

    Args:
        name: NAME, such as ``puffer_breakout``.

    Raises:
        UserError: PufferLib isn't installed, has no such environment, or can't import it.
    """
    known = names()
    if not known:
        raise UserError(
            f"{PREFIX}{name}: PufferLib 3 isn't installed",
            "pip install 'puffer-mlx[pufferlib]', in an environment of its own: docs/install.md",
        )
    if name not in known:
        whole = name if name.startswith(_BEGINNING) else _BEGINNING + name
        near = nearest(whole, known, PREFIX) or f"{PREFIX}{known[0]}, say: puffer-mlx list has all"
        raise UserError(f"{PREFIX}{name}: PufferLib has no such environment", near)
    key = name.removeprefix(_BEGINNING)
    try:
        factory = getattr(importlib.import_module(_MODULE), _TABLE)[key]
        if isinstance(factory, str):
            factory = getattr(importlib.import_module(f"pufferlib.ocean.{key}.{key}"), factory)
    except RAISED as error:
        raise UserError(
            f"{PREFIX}{name} can't be imported: {describe(error)}",
            "its C is compiled when PufferLib is installed: did that succeed?",
        ) from None
    return factory


def _keys(text: str) -> list[str]:
    """Return the keys of the table in a module's text."""
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        if any(isinstance(to, ast.Name) and to.id == _TABLE for to in node.targets):
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            return [key for key in keys if isinstance(key, str)]
    return []
