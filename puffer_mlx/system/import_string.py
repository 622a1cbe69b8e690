"""Objects of the user, named ``module:name`` in the configuration; suggestions for wrong names."""

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

_folders: dict[str, Path] = {}  # working directory in which a name was read


def to_install(error: ModuleNotFoundError) -> str:
    """Return the hint for a missing module."""
    if (error.name or "").partition(".")[0] == "gym":
        return SUCCESSOR
    return f"pip install {error.name}, or what it is called there"


def note_folder(name: str) -> None:
    """Record the working directory in which a name was read, since an environment may change it."""
    if _is_in(Path.cwd(), name):
        _folders[name] = Path.cwd()


def folder_of(name: str) -> Path:
    """Return the folder in which a name's relative path or module is searched.

    It is the working directory, or, if the name isn't there, the one in which the name was read.
    """
    here = Path.cwd()
    return here if _is_in(here, name) else _folders.get(name, here)


def _is_in(folder: Path, name: str) -> bool:
    """Return True if a folder has the file or the module of a name."""
    module = name.rpartition(":")[0]
    if module.endswith(".py"):
        return (folder / module).is_file()
    top = module.partition(".")[0]
    return importlib.machinery.PathFinder.find_spec(top, [str(folder)]) is not None


def add_to_path(folder: Path) -> None:
    """Append a folder to the import path, after installed modules."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def load_object(name: str) -> Any:
    """Return the object that ``module:name`` or ``path/to/file.py:name`` names.

    Modules of the working directory are found, too. A file is imported by its stem, with its folder
    on the path, so that it can import files beside it. If it has relative imports, it is imported
    as a module of its package. Child processes find it by the same name.

    Raises:
        UserError: The module, file or name doesn't exist, or importing it fails.
    """
    module, colon, attribute = name.rpartition(":")
    relative = module.startswith(".") and not module.endswith(".py")
    if not colon or not module or not attribute or relative:
        raise UserError(f"{name!r} doesn't name an object", "write module:Class or file.py:Class")
    value: Any = _import(name, module, folder_of(name))
    for part in attribute.split("."):
        if not hasattr(value, part):
            hint = "write module:Class or module:function"
            raise UserError(f"{name}: {module} has no {attribute}", hint)
        value = getattr(value, part)
    return value


def _import(name: str, module: str, folder: Path) -> ModuleType:
    file = folder / module
    if module.endswith(".py"):
        if not file.is_file():
            raise UserError(f"{name}: there is no file {module}", "write file.py:name")
        above, module = _module_of(file.resolve())
        add_to_path(above)
    add_to_path(folder)
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        hint = f"is {module}.py in this folder, or installed?"
        if isinstance(error, ModuleNotFoundError) and error.name not in _itself(module):
            hint = to_install(error)  # the module exists and imports a missing one
        raise UserError(f"{name}: {error}", hint) from None
    except SystemExit as error:  # a script that runs when imported
        raise UserError(
            f"{name}: {module} ended the program when it was imported: SystemExit: {error}",
            'put what it runs below if __name__ == "__main__":',
        ) from None
    except UserError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place: Any = error if isinstance(error, SyntaxError) else last
        what = getattr(error, "msg", None) or error
        raise UserError(
            f"{name}: {module} failed when it was imported: {type(error).__name__}: {what}"
            f" ({place.filename}:{place.lineno})",
            "correct it there",
        ) from error
    if file.suffix == ".py" and Path(loaded.__file__ or "").resolve() != file.resolve():
        raise UserError(
            f"{name}: there is another module {module}, {loaded.__file__}", "rename the file"
        )
    return loaded


def _module_of(file: Path) -> tuple[Path, str]:
    """Return the folder that must be on the path to import a file, and the module's name there.

    The name is dotted if the file has relative imports, which work only within a package.
    """
    try:
        nodes = ast.walk(ast.parse(file.read_bytes()))
    except (OSError, SyntaxError, ValueError):  # the import reports the error
        nodes = iter(())
    levels = max((node.level for node in nodes if isinstance(node, ast.ImportFrom)), default=0)
    folder, names = file.parent, [file.stem]
    while len(names) <= levels or (levels and (folder / "__init__.py").is_file()):
        folder, names = folder.parent, [folder.name, *names]
    return folder, ".".join(names)


def _itself(module: str) -> list[str]:
    """Return a dotted name and the names of its parent packages."""
    parts = module.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return the names most similar to a wrong one as a hint, ``a, b or c``, or "".

    Args:
        name: The wrong name.
        names: Existing names.
        prefix: Text before each name in the hint.
    """
    close = [prefix + each for each in get_close_matches(name, sorted(names), n=3, cutoff=0.6)]
    return " or ".join(filter(None, [", ".join(close[:-1]), *close[-1:]]))
