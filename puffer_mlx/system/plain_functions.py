"""Record the functions in modules of plain implementations, to notice if a user replaces one.

``ops/implementation.py`` compares the recorded objects with the current ones. If one differs, the
fused kernels would compute something else, so the plain functions are used.
"""

import sys
from collections.abc import ItemsView, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple


class Names(NamedTuple):
    """Functions and constants of a module or class by name: as recorded and as they are now.

    Comparing them shows whether a user has replaced one.

    Imported modules, and functions that launch kernels, aren't recorded.
    """

    owner: str  # "ppo.loss" or "policy.policy.Policy"
    recorded: ItemsView[str, Any]  # (name, object) at import
    current: Mapping[str, Any]  # the namespace itself, which shows later changes


class Recorded(NamedTuple):
    """Record of a module's functions and constants, and of the modules that it imports from."""

    names: list[Names]  # of the module first, then of its classes
    imports: set[str]  # names of modules


recorded: dict[str, Recorded] = {}  # by module name, filled by ``record``


def record(module: str) -> None:
    """Record the functions and constants of a module, to notice later if a user replaces one.

    Each such module calls this at its end.
    """
    namespace = vars(sys.modules[module])
    short_name = module.partition(".")[2]
    names = [Names(short_name, _items(namespace), namespace)]
    for value in namespace.values():
        if isinstance(value, type) and value.__module__ == module:
            members = vars(value)
            names.append(Names(f"{short_name}.{value.__name__}", _items(members), members))
    recorded[module] = Recorded(names, set(map(_origin, namespace.values())))


def _items(namespace: Mapping[str, Any]) -> ItemsView[str, Any]:
    """Return the names and objects of a module or class that should be recorded."""
    plain = {key: value for key, value in namespace.items() if _is_plain(key, value)}
    return plain.items()


def _is_plain(key: str, value: Any) -> bool:
    """Return True if a module's object is to be recorded.

    Imported modules, special names and functions that launch kernels aren't.
    """
    if isinstance(value, FunctionType):
        return not key.startswith("launch")
    return not isinstance(value, ModuleType) and not key.startswith("__")


def _origin(value: Any) -> str:
    """Return the name of the module that an object is or that defines it, or "" if unknown."""
    return value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
