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


def all_formats() -> dict[str, FileFormat]:
    """Return all formats of policy files by name, sorted by module name."""
    names = sorted(
        module.name for module in pkgutil.iter_modules(__path__) if module.name[0] != "_"
    )
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {module.FORMAT.name: module.FORMAT for module in modules}


def make_format(name: str, **options: Any) -> FileFormat:
    """Return the format of policy files that has the given name, with the given options.

    Args:
        name: Name of the format, for example ``onnx``.
        options: Values of the format's options by name.

    Raises:
        UserError: If the format or an option doesn't exist.
    """
    formats = all_formats()
    if name not in formats:
        raise UserError(f"there is no format {name!r}", f"one of {', '.join(formats)}")
    option_names = [field.name for field in dataclasses.fields(formats[name])]
    if unknown := [option for option in options if option not in option_names]:
        raise UserError(
            f"the format {name} has no option {unknown[0]}",
            f"it has {', '.join(option_names)}" if option_names else "leave it out",
        )
    return dataclasses.replace(formats[name], **options)


def format_for_suffix(path: Path) -> FileFormat:
    """Choose the format of a new policy file by the file's suffix.

    If several formats have the suffix, the one whose list of suffixes has it earliest is chosen.

    Raises:
        UserError: If no format has that suffix.
    """
    formats = all_formats().values()
    matching = [each for each in formats if path.suffix in each.suffixes]
    if not matching:
        suffixes = dict.fromkeys(suffix for each in formats for suffix in each.suffixes)
        message = f"no format has files named {path.suffix or path.name}"
        raise UserError(message, f"end the name with {_join_with_or(list(suffixes))}")
    return min(matching, key=lambda each: each.suffixes.index(path.suffix))


def detect_format(path: Path, head: bytes) -> FileFormat:
    """Detect the format of an existing policy file by its first bytes, or else by its suffix.

    Args:
        path: The file.
        head: First bytes of the file.

    Raises:
        UserError: If no format fits.
    """
    formats = all_formats().values()
    with_first_bytes = [each for each in formats if each.first_bytes]
    without_first_bytes = [each for each in formats if not each.first_bytes]
    candidates = [each for each in with_first_bytes if head.startswith(each.first_bytes)]
    if not candidates:
        candidates = [each for each in without_first_bytes if path.suffix in each.suffixes]
    for candidate in candidates:  # of several formats with these bytes, the one with the suffix
        if path.suffix in candidate.suffixes:
            return candidate
    if candidates:
        return candidates[0]
    contents = " nor ".join(each.content for each in with_first_bytes)
    suffixes = _join_with_or([suffix for each in without_first_bytes for suffix in each.suffixes])
    raise UserError(
        f"{path} is neither {contents} nor named {suffixes}", "give the file its format's suffix"
    )


def _join_with_or(words: list[str]) -> str:
    """Join words to a text with commas and "or": ``a, b or c``."""
    *first_words, last = words
    return f"{', '.join(first_words)} or {last}" if first_words else last
