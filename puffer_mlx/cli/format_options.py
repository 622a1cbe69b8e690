"""Options of ``export.py`` and ``import.py`` that one format alone has; the format names them."""

import argparse
from typing import Any

from puffer_mlx.errors import UserError
from puffer_mlx.export import formats
from puffer_mlx.export.file_format import Option


def add_option(group: Any, option: Option, text: str) -> None:
    """Let a group of argparse's take an option, with ``text`` for --help."""
    how = {"choices": option.values} if option.values else {"action": "store_true"}
    group.add_argument(option.flag, help=text, **how)


def chosen_options(options: argparse.Namespace, kind: str, what: str) -> dict[str, Any]:
    """What was typed for a format, by its fields.

    Args:
        options: as parsed.
        kind: the format's name.
        what: of another one's name, what its options belong to: "--to {}".

    Raises:
        UserError: an option of another format was typed.
    """
    chosen = {}
    for name, file in formats.by_name().items():
        for option in file.options:
            typed = getattr(options, option.flag.lstrip("-").replace("-", "_"), None)
            if typed and name != kind:
                raise UserError(
                    f"{option.flag} does nothing without {what.format(name)}", "leave it out"
                )
            if typed:
                chosen[option.argument] = option.values.get(typed, typed)
    return chosen
