"""Send the environments that a program registered to the worker processes that step them.

A process starts without the program's registrations in Gymnasium and PettingZoo, so it wouldn't
find an id, or would find another environment.
"""

import copy
import pickle
import sys
from functools import partial
from typing import Any

from puffer_mlx.errors import UserError

_REGISTRIES = (  # (module, name of its dictionary id -> specification)
    ("gymnasium.envs.registration", "registry"),
    ("pettingzoo.env_registry.registration", "parallel_registry"),
    ("pettingzoo.env_registry.registration", "aec_registry"),
)
_MAIN = "__main__:"  # start of the name of an entry point in the program's script
_ENTRIES = "entry_point", "vector_entry_point"
_received_registries: list[tuple[str, str, dict[str, Any]]] = []  # filled in worker processes


def dumps(value: Any) -> bytes:
    """Pickle a value to bytes, with cloudpickle if installed, to include a script's functions."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    return pickler.dumps(value)


class LazyConstructor:
    """A constructor of environments that is unpickled on first use.

    So a process imports only the modules that it needs, and can report an error.

    Args:
        make: A class or a function.

    Raises:
        Exception: The constructor can't be pickled.
    """

    def __init__(self, make: Any) -> None:
        self._pickled = dumps(make)
        self._name = str(getattr(make, "__qualname__", make))
        self._module = str(getattr(make, "__module__", ""))
        self._file = _file_of(self._module)

    def load(self) -> Any:
        """Unpickle the environment's constructor, a class or function, and return it.

        Raises:
            UserError: In this process, the constructor's module is another file.
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
        """Make an environment: unpickle its constructor and call that."""
        return self.load()(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:  # Gymnasium reads a class's metadata
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.load(), name)


def _raise_unpicklable(name: str, reason: str, **_: Any) -> Any:
    """Raise an error that says why an environment can't be sent to another process.

    Replaces the environment's constructor in a worker process.
    """
    message = f"{name} can't be sent to another process: {reason}"
    raise UserError(message, "set vec.backend to sync")


def portable_specification(specification: Any) -> Any:
    """Copy a registered environment's specification so that worker processes can unpickle it.

    Raises:
        Exception: The constructor can't be pickled.
    """
    copied = copy.copy(specification)
    for name in _ENTRIES:
        entry = getattr(copied, name, None)
        if isinstance(entry, str) and entry.startswith(_MAIN):
            target: Any = sys.modules["__main__"]
            for name_part in entry.removeprefix(_MAIN).split("."):
                target = getattr(target, name_part, None)
            entry = entry if target is None else target
        if callable(entry) and not isinstance(entry, LazyConstructor):
            entry = LazyConstructor(entry)
        if entry is not None:
            _set_field(copied, name, entry)
    return copied


def registered() -> bytes:
    """Pickle all environments registered in this process, for ``receive`` in a worker process."""
    registries = []
    for module, name in _REGISTRIES:
        if registry := getattr(sys.modules.get(module), name, None):
            specifications = {key: _portable_or_not(registry[key]) for key in registry}
            registries.append((module, name, specifications))
    try:
        return dumps(registries)
    except Exception:  # replace the environments that can't be pickled, which may be unused
        for _, _, specifications in registries:
            for key, each in specifications.items():
                specifications[key] = _portable_or_not(each, check_arguments=True)
        return dumps(registries)


def _portable_or_not(specification: Any, check_arguments: bool = False) -> Any:
    """Copy an environment's specification for worker processes.

    If it can't be pickled, return one that raises the reason when it is used.

    Args:
        specification: Specification of a registered environment.
        check_arguments: True to pickle its arguments as a test.
    """
    try:
        copied = portable_specification(specification)
        if check_arguments:
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
    """Register environments of another process in this one, from its pickled ``registered()``."""
    _received_registries[:] = pickle.loads(pickled)
    _register()


def _register() -> None:
    for module, name, specifications in _received_registries:
        getattr(sys.modules[module], name).update(specifications)


def _file_of(module: str) -> str | None:
    if module == _MAIN.removesuffix(":"):  # pickled by value
        return None
    return getattr(sys.modules.get(module), "__file__", None)
