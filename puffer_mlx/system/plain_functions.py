"""Remember what the names in files of plain functions stand for: see ``ops/implementation.py``."""

import sys
from collections.abc import ItemsView, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple


class Names(NamedTuple):
    """Names of a module or a class, and the objects that they stood for when it was imported.

    Imported modules and functions that launch kernels aren't among them.
    """

    place: str  # "ppo.loss" or "policy.policy.Policy"
    recorded: ItemsView[str, Any]
    current: Mapping[str, Any]


class Recorded(NamedTuple):
    """A module of plain functions."""

    names: list[Names]  # its own, then those of its classes
    imports: set[str]  # modules from which it has names


recorded: dict[str, Recorded] = {}  # by the module's name


def record(module: str) -> None:
    """Remember what the names of a module of plain functions stand for. Call it at the end."""
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
    """Return the name of the module in which a value was defined, or that it is."""
    return value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
