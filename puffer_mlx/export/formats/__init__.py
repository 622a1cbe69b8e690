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
    """Return all formats of policy files by name, sorted by module name."""
    names = sorted(
        module.name for module in pkgutil.iter_modules(__path__) if module.name[0] != "_"
    )
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {module.FORMAT.name: module.FORMAT for module in modules}


def make_format(name: str, **options: Any) -> FileFormat:
    """Create a format of policy files with a caller's options.

    Raises:
        UserError: If the format or an option doesn't exist.
    """
    formats = by_name()
    if name not in formats:
        raise UserError(f"there is no format {name!r}", f"one of {', '.join(formats)}")
    option_names = [field.name for field in dataclasses.fields(formats[name])]
    if unknown := [option for option in options if option not in option_names]:
        raise UserError(
            f"the format {name} has no option {unknown[0]}",
            f"it has {', '.join(option_names)}" if option_names else "leave it out",
        )
    return dataclasses.replace(formats[name], **options)


def by_suffix(path: Path) -> FileFormat:
    """Choose the format of a new policy file by the file's suffix.

    Raises:
        UserError: If no format has that suffix.
    """
    all_formats = by_name().values()
    matching = [file for file in all_formats if path.suffix in file.suffixes]
    if not matching:
        suffixes = dict.fromkeys(suffix for file in all_formats for suffix in file.suffixes)
        message = f"no format has files named {path.suffix or path.name}"
        raise UserError(message, f"end the name with {_or(list(suffixes))}")
    return min(matching, key=lambda file: file.suffixes.index(path.suffix))


def detect_format(path: Path, head: bytes) -> FileFormat:
    """Detect the format of an existing policy file by its first bytes, or else by its suffix.

    Args:
        path: The file.
        head: First bytes of the file.

    Raises:
        UserError: If no format fits.
    """
    all_formats = by_name().values()
    identified = [file for file in all_formats if file.first_bytes]
    others = [file for file in all_formats if not file.first_bytes]
    by_content = [file for file in identified if head.startswith(file.first_bytes)]
    if possible := by_content or [file for file in others if path.suffix in file.suffixes]:
        return max(possible, key=lambda file: path.suffix in file.suffixes)
    contents = " nor ".join(file.content for file in identified)
    suffixes = _or([suffix for file in others for suffix in file.suffixes])
    raise UserError(
        f"{path} is neither {contents} nor named {suffixes}", "give the file its format's suffix"
    )


def _or(words: list[str]) -> str:
    """Join words with commas and "or": a, b or c."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
