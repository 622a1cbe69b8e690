"""Record the functions in modules of plain implementations, to notice if a user replaces one.

``ops/implementation.py`` compares the recorded objects with the current ones. If one differs, the
fused kernels would compute something else, so the plain functions are used.
"""

import sys
from collections.abc import ItemsView, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple


class Names(NamedTuple):
    """Objects by name in a module or class, at import and now.

    Imported modules and functions that launch kernels are left out of ``recorded``.
    """

    owner: str  # "ppo.loss" or "policy.policy.Policy"
    recorded: ItemsView[str, Any]  # (name, object) at import
    current: Mapping[str, Any]  # name to object, now


class Recorded(NamedTuple):
    """Recorded names of a module of plain functions, and the modules that it imports from."""

    names: list[Names]  # of the module first, then of its classes
    imports: set[str]  # names of modules


recorded: dict[str, Recorded] = {}  # by module name


def record(module: str) -> None:
    """Record the functions and constants of a module of plain functions.

    Each such module calls this at its end.
    """
    namespace = vars(sys.modules[module])
    classes = [c for c in namespace.values() if isinstance(c, type) and c.__module__ == module]
    namespaces = [("", namespace), *((f".{each.__name__}", vars(each)) for each in classes)]
    short = module.partition(".")[2]
    names = [Names(short + path, _items(space), space) for path, space in namespaces]
    recorded[module] = Recorded(names, set(map(_origin, namespace.values())))


def _items(namespace: Mapping[str, Any]) -> ItemsView[str, Any]:
    plain = {key: value for key, value in namespace.items() if _is_plain(key, value)}
    return plain.items()


def _is_plain(key: str, value: Any) -> bool:
    if isinstance(value, FunctionType):
        return not key.startswith("launch")
    return not isinstance(value, ModuleType) and not key.startswith("__")


def _origin(value: Any) -> str:
    """Return the name of the module that a value is or that defines it, or "" if unknown."""
    return value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
