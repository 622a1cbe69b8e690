"""Helpers of all commands: declare options by a table, refuse unused ones, print notes."""

import argparse
import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from puffer_mlx.config import Config, take_notes
from puffer_mlx.config.finding import plain_path
from puffer_mlx.config.schema import DECLARED
from puffer_mlx.errors import UserError
from puffer_mlx.system import verbosity
from puffer_mlx.system.files import check_writable
from puffer_mlx.system.json_text import STANDARD_OUTPUT

OptionType = Callable[[str], Any]
MAX_NUMBER = 1e12  # default upper limit of an option's number


def number_type(kind: type, minimum: float, maximum: float = MAX_NUMBER) -> Callable[[str], float]:
    """Return a function that argparse uses to parse numbers in a range, such as 1_000 or 1e3."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        legal = math.isfinite(value) and minimum <= value <= maximum
        if not legal or (kind is int and value != int(value)):
            kind_text = "a whole number" if kind is int else "a number"
            end = "up" if maximum >= MAX_NUMBER else f"to {maximum:g}"
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind_text} from {minimum:g} {end}")
        return kind(value)

    return parse


def json_output(text: str) -> Path:
    """Return the path typed after ``--json``, after checking that it is writable; ``-`` is allowed.

    A ``-`` means standard output.
    """
    return STANDARD_OUTPUT if text == str(STANDARD_OUTPUT) else check_writable(text)


OPTION_TYPES: dict[str, OptionType] = {  # types by option; else by metavar
    "--json": json_output,
    "FILE": check_writable,  # a file to write; ``types`` overrides it for a file to read
    "FOLDER": Path,
    "N": number_type(int, 1),
    "SECONDS": number_type(float, 0.001),
}


def add_option_table(
    parser: argparse.ArgumentParser,
    title: str,
    table: str,
    description: str | None = None,
    types: Mapping[str, OptionType] | None = None,
) -> argparse._ArgumentGroup:
    """Add a group of options to a parser from a table in text form. Returns the group.

    Args:
        parser: Parser of the command.
        title: Title of the group in help.
        table: Text with one option per entry: names, metavar, two blanks, help. Indented lines
            continue the help. FILE... takes several values, FILE* may be repeated, and [FILE] has
            an optional value, "" if omitted. An option without a metavar is a switch.
        description: Description of the group in help.
        types: Types by option. Other options have the type of their metavar in ``OPTION_TYPES``, or
            are texts.
    """
    group = parser.add_argument_group(title, description)
    for entry in re.split(r"\n(?=\S)", table.strip()):
        head, text = re.split(r"\s{2,}", entry, maxsplit=1)
        names = [word.rstrip(",") for word in head.split() if word.startswith("-")]
        metavar = "" if head.split()[-1] == names[-1] else head.split()[-1]
        option_type = (types or {}).get(names[0], OPTION_TYPES.get(names[0]))
        arguments = _argparse_arguments(metavar, option_type)
        group.add_argument(*names, help=" ".join(text.split()), **arguments)
    return group


def _argparse_arguments(metavar: str, option_type: OptionType | None) -> dict[str, Any]:
    """Return argparse's keyword arguments for an option that a table of options describes.

    Args:
        metavar: Metavar in the table, for example ``FILE...``; empty for a switch.
        option_type: Type of the option; None for the metavar's.
    """
    if not metavar:
        return {"action": "store_true"}
    name = metavar.strip("[].*")
    arguments: dict[str, Any] = {
        "metavar": name,
        "type": option_type or OPTION_TYPES.get(name, str),
    }
    if metavar.endswith("..."):
        arguments |= {"nargs": "+", "default": []}
    elif metavar.endswith("*"):
        arguments |= {"action": "append", "default": []}
    elif metavar.startswith("["):
        arguments |= {"nargs": "?", "const": ""}
    return arguments


def reject_unused(
    options: argparse.Namespace, names: Iterable[str], reason: str, hint: str = "leave it out"
) -> None:
    """Raise a UserError if the user typed an option that has no effect here.

    Args:
        options: Parsed options. An untyped option is None, False or an empty list, never 0.
        names: Attributes of the options without effect.
        reason: Text after "has no effect" in the message.
        hint: Hint of the error.
    """
    for name in names:
        if getattr(options, name):
            raise UserError(f"--{name.replace('_', '-')} has no effect {reason}", hint)


def print_next_commands(*commands: tuple[str, str]) -> None:
    """Print suggested commands for the user to type next, unless ``-q`` is set.

    Args:
        commands: Commands with their purposes. A purpose is left out if it exceeds 80 columns.
    """
    width = max(len(command) for command, _ in commands)
    for index, (command, purpose) in enumerate(commands):
        label = "" if index else "next"
        line = f"{label:6}{command}"
        full = f"{line:{width + 6}}  # {purpose}"
        if not verbosity.is_quiet():  # not wrapped: lines to copy
            print(full if len(full) <= 80 else line, flush=True)


def make_and_find_family(config: Config) -> str:
    """Create a Python environment to find out its family (group with the same default settings).

    Returns the family's name. ``vec`` is imported only here, because it imports MLX.

    Raises:
        UserError: If the environment can't be made, or isn't trusted.
    """
    from puffer_mlx import vec

    with contextlib.chdir("."):  # the environment may change the working directory
        return vec.look_up_family(config)


def print_notes(config: Config) -> None:
    """Print the notes stored in a configuration; with ``-v`` also where its values come from."""
    verbosity.note(*take_notes(config))
    print_origins(config)


def print_origins(config: Config) -> None:
    """Print, only with ``-v``, a configuration's files and where each of its values comes from."""
    if config.files:
        verbosity.detail(f"files, later ones win: {', '.join(config.files)}")
    for name in DECLARED:
        if origin := config.origins.get(name):
            path, colon, line = origin.rpartition(":")
            location = f"{plain_path(Path(path))}:{line}" if colon else origin
            verbosity.detail(f"  {name:<28}{config.value(name)!s:<16} {location}")
    for key, value in config.env.items():
        verbosity.detail(f"  {f'env.{key}':<28}{value}")
