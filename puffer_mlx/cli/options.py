"""Options of commands: add a table of options to a parser, refuse options without effect."""

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
from puffer_mlx.system import voice
from puffer_mlx.system.files import check_writable
from puffer_mlx.system.json_text import STANDARD_OUTPUT

Type = Callable[[str], Any]
MOST = 1e12  # default upper limit


def number(kind: type, least: float, most: float = MOST) -> Callable[[str], float]:
    """Return a function that parses a finite number in a range, such as 1_000 or 1e3."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        legal = math.isfinite(value) and least <= value <= most
        if not legal or (kind is int and value != int(value)):
            words = "a whole number" if kind is int else "a number"
            end = "up" if most >= MOST else f"to {most:g}"
            raise argparse.ArgumentTypeError(f"{text!r} is not {words} from {least:g} {end}")
        return kind(value)

    return parse


def json_output(text: str) -> Path:
    """Return the file of ``--json``; ``-`` is standard output."""
    return STANDARD_OUTPUT if text == str(STANDARD_OUTPUT) else check_writable(text)


TYPES: dict[str, Type] = {  # types by option, else by metavar
    "--json": json_output,
    "FILE": check_writable,  # for a file to write; ``types`` overrides it for a file to read
    "FOLDER": Path,
    "N": number(int, 1),
    "SECONDS": number(float, 0.001),
}


def add_table(
    parser: argparse.ArgumentParser,
    title: str,
    table: str,
    about: str | None = None,
    types: Mapping[str, Type] | None = None,
) -> argparse._ArgumentGroup:
    """Add the options of a table as a group. Returns the group.

    Args:
        parser: Parser of the command.
        title: Title of the group in help.
        table: Text with one option per entry: names, metavar, two blanks, help. Indented lines
            continue the help. FILE... takes several values, FILE* may be repeated, and [FILE] has
            an optional value, "" if omitted. An option without a metavar is a switch.
        about: Description of the group in help.
        types: Functions from text to value, by option. Other options use ``TYPES`` by metavar, or
            stay text.
    """
    group = parser.add_argument_group(title, about)
    for entry in re.split(r"\n(?=\S)", table.strip()):
        head, text = re.split(r"\s{2,}", entry, maxsplit=1)
        names = [word.rstrip(",") for word in head.split() if word.startswith("-")]
        word = "" if head.split()[-1] == names[-1] else head.split()[-1]
        how = _taking(word, (types or {}).get(names[0], TYPES.get(names[0])))
        group.add_argument(*names, help=" ".join(text.split()), **how)
    return group


def _taking(word: str, kind: Type | None) -> dict[str, Any]:
    """Return argparse's arguments for an option with this metavar; "" makes a switch."""
    if not word:
        return {"action": "store_true"}
    plain = word.strip("[].*")
    how: dict[str, Any] = {"metavar": plain, "type": kind or TYPES.get(plain, str)}
    if word.endswith("..."):
        how |= {"nargs": "+", "default": []}
    elif word.endswith("*"):
        how |= {"action": "append", "default": []}
    elif word.startswith("["):
        how |= {"nargs": "?", "const": ""}
    return how


def reject_unused(
    options: argparse.Namespace, names: Iterable[str], why: str, hint: str = "leave it out"
) -> None:
    """Refuse options that were given and have no effect.

    Args:
        options: Parsed options; None, False and empty lists mean that an option wasn't given. No
            option may be 0.
        names: Attributes of the options without effect.
        why: Text after "does nothing" in the message.
        hint: Hint of the error.

    Raises:
        UserError: One of the options was given.
    """
    for name in names:
        if getattr(options, name):
            raise UserError(f"--{name.replace('_', '-')} does nothing {why}", hint)


def say_next(*steps: tuple[str, str]) -> None:
    """Print what to type next, unless quiet.

    Args:
        steps: Commands, each with its purpose, which is left out if 80 columns can't hold it.
    """
    width = max(len(command) for command, _ in steps)
    for number, (command, purpose) in enumerate(steps):
        line = f"{'' if number else 'next':6}{command}"
        full = f"{line:{width + 6}}  # {purpose}"
        if not voice.is_quiet():  # not wrapped: lines to copy
            print(full if len(full) <= 80 else line, flush=True)


def find_family(config: Config) -> str:
    """Return the family of an environment in Python by making it. Imports the environments' room.

    Raises:
        UserError: The environment can't be made, or isn't trusted.
    """
    from puffer_mlx import vec

    with contextlib.chdir("."):  # the environment may change it
        return vec.look_up_family(config)


def say_config(config: Config) -> None:
    """Print a configuration's notes and, with ``-v``, the origins of its values."""
    voice.note(*take_notes(config))
    detail_config(config)


def detail_config(config: Config) -> None:
    """With ``-v``, print the files that were read and each value that they set."""
    if config.files:
        voice.detail(f"read, the later ones winning: {', '.join(config.files)}")
    for name in DECLARED:
        if origin := config.origins.get(name):
            path, colon, line = origin.rpartition(":")
            where = f"{plain_path(Path(path))}:{line}" if colon else origin
            voice.detail(f"  {name:<28}{config.value(name)!s:<16} {where}")
    for key, value in config.env.items():
        voice.detail(f"  {f'env.{key}':<28}{value}")
