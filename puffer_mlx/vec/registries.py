"""Registered environments of this program, for the processes that step them.

A process starts without the registrations of the program. It would not find an id, or would find
another environment. So the registries of Gymnasium and PettingZoo are sent to it.
"""

import copy
import pickle
import sys
from functools import partial
from typing import Any

from puffer_mlx.errors import UserError

_REGISTRIES = (  # of a module, a dictionary: id -> specification
    ("gymnasium.envs.registration", "registry"),
    ("pettingzoo.env_registry.registration", "parallel_registry"),
    ("pettingzoo.env_registry.registration", "aec_registry"),
)
_MAIN = "__main__:"  # of an entry point's name: the program's own script
_ENTRIES = "entry_point", "vector_entry_point"
_received_registries: list[tuple[str, str, dict[str, Any]]] = []  # in a process for environments


def dumps(value: Any) -> bytes:
    """Pickle a value. Uses cloudpickle, which Gymnasium requires, for the script's functions."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    return pickler.dumps(value)


class LazyConstructor:
    """Constructor that is unpickled on first use.

    So a process imports only the necessary modules, and can report an error.

    Args:
        make: A class or a function.

    Raises:
        Exception: It can't be pickled.
    """

    def __init__(self, make: Any) -> None:
        self._pickled = dumps(make)
        self._name = str(getattr(make, "__qualname__", make))
        self._module = str(getattr(make, "__module__", ""))
        self._file = _file_of(self._module)

    def load(self) -> Any:
        """Return the constructor of the environment.

        Raises:
            UserError: Its module is another file in this process.
        """
        make = pickle.loads(self._pickled)
        file = _file_of(self._module)
        if self._file and file and file != self._file:
            raise UserError(
                f"{self._name} is in {self._file}, but a process imports {file} as {self._module}",
                "rename one of the files, or set vec.backend to sync",
            )
        _register()  # importing its module may have registered other environments
        return make

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Make an environment."""
        return self.load()(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:  # Gymnasium reads a class's metadata
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.load(), name)


def _raise_unpicklable(name: str, reason: str, **_: Any) -> Any:
    """Raise the reason why an environment can't be pickled, in place of its constructor."""
    message = f"{name} can't be sent to another process: {reason}"
    raise UserError(message, "set vec.backend to sync")


def portable_specification(specification: Any) -> Any:
    """Return a copy of a registered environment's specification that processes can use.

    Raises:
        Exception: The constructor can't be pickled.
    """
    copied = copy.copy(specification)
    for name in _ENTRIES:
        entry = getattr(copied, name, None)
        if isinstance(entry, str) and entry.startswith(_MAIN):
            found: Any = sys.modules["__main__"]
            for part in entry.removeprefix(_MAIN).split("."):
                found = getattr(found, part, None)
            entry = entry if found is None else found
        if callable(entry) and not isinstance(entry, LazyConstructor):
            entry = LazyConstructor(entry)
        if entry is not None:
            _set_field(copied, name, entry)
    return copied


def registered() -> bytes:
    """Return the registries of this process, for ``receive``."""
    found = []
    for module, name in _REGISTRIES:
        if registry := getattr(sys.modules.get(module), name, None):
            found.append((module, name, {key: _portable_or_not(registry[key]) for key in registry}))
    try:
        return dumps(found)
    except Exception:  # one of many, perhaps unused
        for _, _, specifications in found:
            for key, each in specifications.items():
                specifications[key] = _portable_or_not(each, whole=True)
        return dumps(found)


def _portable_or_not(specification: Any, whole: bool = False) -> Any:
    """Return `portable_specification`'s result, or a specification that raises the reason when it is used.

    Args:
        specification: Specification of a registered environment.
        whole: Try to pickle its arguments, too.
    """
    try:
        copied = portable_specification(specification)
        if whole:
            dumps(copied)
    except Exception as error:
        copied = copy.copy(specification)
        left_out = {"vector_entry_point": None, "additional_wrappers": (), "kwargs": {}}
        for name in left_out:
            if hasattr(copied, name):
                _set_field(copied, name, left_out[name])
        _set_field(copied, "entry_point", partial(_raise_unpicklable, copied.id, str(error)))
    return copied


def _set_field(specification: Any, name: str, value: Any) -> None:
    object.__setattr__(specification, name, value)  # PettingZoo's are frozen


def receive(pickled: bytes) -> None:
    """Use another process's registries in this one."""
    _received_registries[:] = pickle.loads(pickled)
    _register()


def _register() -> None:
    for module, name, specifications in _received_registries:
        getattr(sys.modules[module], name).update(specifications)


def _file_of(module: str) -> str | None:
    if module == _MAIN.removesuffix(":"):  # pickled by value
        return None
    return getattr(sys.modules.get(module), "__file__", None)
