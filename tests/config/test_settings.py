"""Command lines and files, and all that comes of each: ``settings.txt`` (``golden.py``).

The whole message where it is refused; else the trainer, notes, and what the words and the file set;
of an environment alone, all that isn't at its default.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from golden import entries, placed, write_toy

from puffer_mlx import config as c
from puffer_mlx.config.notes import trainer_note, unread
from puffer_mlx.config.schema import COMMAND_LINE, DECLARED
from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.system.files import shipped

NAME = "config/settings.txt"
OWN = "toy.ini:", "config/", "mine/", "ocean/"  # files of an entry


def prepare() -> None:
    """Nothing has to be there."""


def outcome(given: list[str]) -> str:
    """What comes of it now; what is taken must read back from where it is written."""
    write_toy(given)
    try:
        with program.running_command():
            config = c.parse_command_line(shlex.split(given[0][2:]))[0]
    except UserError as error:
        text = re.sub(rf"{shipped('configs')}(\S+\.ini):\d+", r"configs\1", str(error))
        return placed(text)
    Path("again.ini").write_text(c.ini_text(config))
    again = c.load("again.ini")
    assert again == config, given
    assert all(": sources in " in note for note in again.notes), given
    assert again.chosen_by == "again.ini says train.algorithm"
    return placed("\n".join(lines_about(config, given)))


def lines_about(config: c.Config, given: list[str]) -> Iterator[str]:
    """Lines about a configuration."""
    yield trainer_note(config)
    yield from config.notes
    if config.python or any(line[0] == "%" for line in given):
        yield f"files: {', '.join(config.files)}"
    if config.unused or unread(config):
        yield f"unused: {', '.join([*config.unused, *unread(config)])}"
    words = given[0]
    whole = words == f"$ {config.env_name}"  # then all that isn't at its default
    for name, origin in config.origins.items():
        if name not in DECLARED:  # typed keys of [env], below, and ranges of a sweep
            continue
        if whole or origin == COMMAND_LINE or origin.startswith(OWN):
            yield f"{name} = {config.value(name)!r}" + f" ({origin})" * (not whole)
    for key, value in config.env.items():
        if config.source or config.env_name == "toy" or f"env.{key}" in words.replace("-", "_"):
            yield f"env.{key} = {value!r}"
    if config.bot_eval:
        yield f"bot_eval = {config.bot_eval}"


def test_each_comes_to_this(here):
    for given, expected in entries(NAME):
        assert outcome(given) == expected, given


def test_errors_say_where_they_are_from():
    errors = [entry for entry in entries(NAME) if "hint: " in entry[1]]
    assert len(errors) > 140
    for given, message in errors:
        if (given[-1][0] == "|" and "[train]" in given[-1]) or "--train." in given[0]:
            assert COMMAND_LINE in message or "toy.ini" in message, given
