"""Import objects that a configuration names as ``module:name``, and suggest similar names."""

import ast
import importlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from puffer_mlx.errors import UserError

SUCCESSOR = (
    "Gymnasium is gym's successor: import gymnasium as gym; reset returns observation, info,"
    " and step observation, reward, terminated, truncated, info"
)

_folders: dict[str, Path] = {}  # working directory at ``record_folder``, by import string


def install_hint(error: ModuleNotFoundError) -> str:
    """Return a hint that says how to install a missing module."""
    if (error.name or "").partition(".")[0] == "gym":
        return SUCCESSOR
    return f"pip install {error.name} (the package may have another name)"


def record_folder(name: str) -> None:
    """Record the working directory if it has an import string's file or module.

    An environment may later change the working directory.

    Args:
        name: ``module:name`` or ``file.py:name``, recorded only if it is found in this directory.
    """
    if _is_in(Path.cwd(), name):
        _folders[name] = Path.cwd()


def search_folder(name: str) -> Path:
    """Return the folder that contains an import string's file or module.

    This is the working directory, or else the one that ``record_folder`` recorded. For an unknown
    file or module, it is the working directory.
    """
    here = Path.cwd()
    return here if _is_in(here, name) else _folders.get(name, here)


def _is_in(folder: Path, name: str) -> bool:
    """Return True if a folder contains the file or module that an import string names."""
    module = name.rpartition(":")[0]
    if module.endswith(".py"):
        return (folder / module).is_file()
    top = module.partition(".")[0]
    return importlib.machinery.PathFinder.find_spec(top, [str(folder)]) is not None


def add_to_path(folder: Path) -> None:
    """Append a folder to Python's import path, after installed modules."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def load_object(name: str) -> Any:
    """Import and return the object named by ``module:name`` or ``path/to/file.py:name``.

    Modules in the working directory are found, too. A file is imported by its stem, and its folder
    is added to the import path, so that it can import files beside it. A file with relative imports
    is imported as a module of its package. Child processes find the object by the same name.

    Raises:
        UserError: The module, file or name doesn't exist, or importing it fails.
    """
    module, colon, attribute = name.rpartition(":")
    is_relative_import = module.startswith(".") and not module.endswith(".py")
    if not colon or not module or not attribute or is_relative_import:
        raise UserError(f"{name!r} doesn't name an object", "write module:Class or file.py:Class")
    value: Any = _import(name, module, search_folder(name))
    for attribute_name in attribute.split("."):
        if not hasattr(value, attribute_name):
            hint = "write module:Class or module:function"
            raise UserError(f"{name}: {module} has no {attribute}", hint)
        value = getattr(value, attribute_name)
    return value


def _import(name: str, module: str, folder: Path) -> ModuleType:
    """Import the module of an import string.

    Args:
        name: The import string, for messages.
        module: Name of the module or path of a file.
        folder: Folder from ``search_folder``.

    Raises:
        UserError: The module or file doesn't exist, or importing it fails.
    """
    file = folder / module
    if module.endswith(".py"):
        if not file.is_file():
            raise UserError(f"{name}: there is no file {module}", "write file.py:name")
        import_folder, module = _module_of(file.resolve())
        add_to_path(import_folder)
    add_to_path(folder)
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        hint = f"is {module}.py in this folder, or installed?"
        if isinstance(error, ModuleNotFoundError) and error.name not in _with_parents(module):
            hint = install_hint(error)  # the module exists, but imports a missing one
        raise UserError(f"{name}: {error}", hint) from None
    except SystemExit as error:  # a script that runs when imported
        raise UserError(
            f"{name}: importing {module} ended the program: SystemExit: {error}",
            'put the code that it runs below if __name__ == "__main__":',
        ) from None
    except UserError:
        raise
    except Exception as error:
        # Both have filename and lineno.
        location: Any = error
        if not isinstance(error, SyntaxError):
            location = traceback.extract_tb(error.__traceback__)[-1]
        message = getattr(error, "msg", None) or error
        raise UserError(
            f"{name}: importing {module} failed: {type(error).__name__}: {message}"
            f" ({location.filename}:{location.lineno})",
            "correct the error there",
        ) from error
    if file.suffix == ".py" and Path(loaded.__file__ or "").resolve() != file.resolve():
        raise UserError(
            f"{name}: there is another module {module}, {loaded.__file__}", "rename the file"
        )
    return loaded


def _module_of(file: Path) -> tuple[Path, str]:
    """Return the folder to add to the import path for a file, and the file's module name in it.

    The module name is dotted if the file has relative imports, which work only within a package.
    """
    try:
        nodes = ast.walk(ast.parse(file.read_bytes()))
    except (OSError, SyntaxError, ValueError):  # the import reports the error
        nodes = iter(())
    levels = max((node.level for node in nodes if isinstance(node, ast.ImportFrom)), default=0)
    folder = file.parent
    names = [file.stem]
    # Go up one folder for each dot of a relative import, and then to the top of the package.
    while len(names) <= levels or (levels and (folder / "__init__.py").is_file()):
        names.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(names)


def _with_parents(module: str) -> list[str]:
    """Return the names of a module's parent packages, outermost first, then its own dotted name."""
    parts_of_name = module.split(".")
    return [".".join(parts_of_name[:n]) for n in range(1, len(parts_of_name) + 1)]


def nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return the names most similar to a misspelled one, for a hint: ``a, b or c``, or "".

    Args:
        name: The wrong name.
        names: Existing names.
        prefix: Text before each name in the hint.
    """
    close = [prefix + each for each in get_close_matches(name, sorted(names), n=3, cutoff=0.6)]
    if len(close) < 2:
        return "".join(close)
    return f"{', '.join(close[:-1])} or {close[-1]}"
