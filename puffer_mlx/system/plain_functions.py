"""Record the objects bound to the names in files of plain functions, to notice replaced ones.

``ops/implementation.py`` compares them.
"""

import sys
from collections.abc import ItemsView, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple


class Names(NamedTuple):
    """Names of a module or class, without imported modules and functions that launch kernels."""

    place: str  # "ppo.loss" or "policy.policy.Policy"
    recorded: ItemsView[str, Any]  # names and objects at import
    current: Mapping[str, Any]  # names and objects now


class Recorded(NamedTuple):
    """A module of plain functions."""

    names: list[Names]  # of the module, then of its classes
    imports: set[str]  # modules whose names it imports


recorded: dict[str, Recorded] = {}  # by the module's name


def record(module: str) -> None:
    """Record the names of a module of plain functions. Each such module calls this at its end."""
    space = vars(sys.modules[module])
    classes = [c for c in space.values() if isinstance(c, type) and c.__module__ == module]
    found = [("", space), *((f".{each.__name__}", vars(each)) for each in classes)]
    short = module.partition(".")[2]
    names = [Names(short + path, _items(s), s) for path, s in found]
    recorded[module] = Recorded(names, set(map(_origin, space.values())))


def _items(space: Mapping[str, Any]) -> ItemsView[str, Any]:
    kept = {key: value for key, value in space.items() if _is_plain(key, value)}
    return kept.items()


def _is_plain(key: str, value: Any) -> bool:
    if isinstance(value, FunctionType):
        return not key.startswith("launch")
    return not isinstance(value, ModuleType) and not key.startswith("__")


def _origin(value: Any) -> str:
    """Return the module's name for a module, else the name of the module that defines a value."""
    return value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
