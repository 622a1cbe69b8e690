"""File formats for export and import.

Each format is a module or package in this folder. It defines ``FORMAT``, an object of a class
derived from ``FileFormat``. Listing the folder finds all formats, so there is no table to update.
"""

import dataclasses
import importlib
import pkgutil
from pathlib import Path
from typing import Any

from puffer_mlx.errors import UserError
from puffer_mlx.export.file_format import FileFormat


def by_name() -> dict[str, FileFormat]:
    """Return all formats by name, sorted by module name."""
    names = sorted(
        module.name for module in pkgutil.iter_modules(__path__) if module.name[0] != "_"
    )
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {module.FORMAT.name: module.FORMAT for module in modules}


def make_format(name: str, **options: Any) -> FileFormat:
    """Return a format with a caller's options.

    Raises:
        UserError: If the format or an option doesn't exist.
    """
    formats = by_name()
    if name not in formats:
        raise UserError(f"there is no format {name!r}", f"one of {', '.join(formats)}")
    known = [field.name for field in dataclasses.fields(formats[name])]
    if unknown := [option for option in options if option not in known]:
        raise UserError(
            f"the format {name} has no option {unknown[0]}",
            f"it has {', '.join(known)}" if known else "leave it out",
        )
    return dataclasses.replace(formats[name], **options)


def by_suffix(path: Path) -> FileFormat:
    """Return the format of a new file by its suffix.

    Raises:
        UserError: If no format has that suffix.
    """
    every = by_name().values()
    named = [file for file in every if path.suffix in file.suffixes]
    if not named:
        suffixes = _or(list(dict.fromkeys(suffix for file in every for suffix in file.suffixes)))
        message = f"there is no format of files named {path.suffix or path.name}"
        raise UserError(message, f"name it {suffixes}")
    return min(named, key=lambda file: file.suffixes.index(path.suffix))


def detect_format(path: Path, head: bytes) -> FileFormat:
    """Return the format of a file, by its first bytes or else by its suffix.

    Args:
        path: The file.
        head: First bytes of the file.

    Raises:
        UserError: If no format fits.
    """
    every = by_name().values()
    by_content = [file for file in every if file.begins and head.startswith(file.begins)]
    by_suffix = [file for file in every if not file.begins and path.suffix in file.suffixes]
    if possible := by_content or by_suffix:
        return max(possible, key=lambda file: path.suffix in file.suffixes)
    contents = " nor ".join(file.content for file in every if file.begins)
    suffixes = _or([suffix for file in every if not file.begins for suffix in file.suffixes])
    raise UserError(
        f"{path} is neither {contents} nor named {suffixes}", "name the file after what it is"
    )


def _or(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
