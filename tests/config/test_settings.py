"""Command lines and files, and what is said of each: ``messages.txt`` (``golden.py``).

That is the whole message of a refusal; otherwise the trainer, notes, and the values of settings
that aren't named in the words and the file: renamed and lowered ones.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from golden import entries, placed, write_toy, written

from puffer_mlx import config as c
from puffer_mlx.config.notes import keys_without_effect, trainer_note
from puffer_mlx.config.schema import COMMAND_LINE, DECLARED
from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.system.files import shipped_folder

OWN = "toy.ini:", "config/", "configs/", "mine/", "ocean/"  # files of an entry


def prepare() -> None:
    """Do nothing: configuration messages need no other files. ``golden.messages`` calls this."""


def outcome(given: str) -> str:
    """Return the messages about a configuration, which must also read back from its saved file."""
    write_toy(given)
    try:
        with program.running_command():
            config = c.parse_command_line(shlex.split(written(given)))[0]
    except UserError as error:
        return placed(
            re.sub(rf"{shipped_folder('configs')}(\S+\.ini):\d+", r"configs\1", str(error))
        )
    Path("again.ini").write_text(c.ini_text(config))
    again = c.load("again.ini")
    assert again == config, given
    assert all(": sources in " in note for note in again.notes), given
    assert again.trainer_reason == "again.ini says train.algorithm"
    return placed("\n".join(lines_about(config, given)))


def lines_about(config: c.Config, given: str) -> Iterator[str]:
    """Yield lines that describe a configuration in the recorded messages: notes, origins etc."""
    yield trainer_note(config)
    yield from config.notes
    if config.python or "%" in given:
        yield f"files: {', '.join(config.files)}"
    if config.unused or keys_without_effect(config):
        yield f"unused: {', '.join([*config.unused, *keys_without_effect(config)])}"
    words = given.replace("-", "_")
    for name, origin in config.origins.items():
        if name in DECLARED and (origin == COMMAND_LINE or origin.startswith(OWN)):
            value = config.value(name)
            line = f"{name.partition('.')[2]} = {value}"
            if name not in words and line not in given:
                yield f"{name} = {value!r} ({origin})"
    if config.source or config.env_name == "toy":
        yield from (f"env.{key} = {value!r}" for key, value in config.env.items())
    if config.bot_eval:
        yield f"bot_eval = {config.bot_eval}"


def test_settings_have_these_messages(here):
    expected = entries(":")
    assert {given: outcome(given) for given in expected} == expected


def test_messages_about_settings_say_where_they_are_from():
    for given, said in entries(":").items():
        if "\n  hint: " in said and ("\n| [train]" in given or "--train." in given):
            assert COMMAND_LINE in said or "toy.ini" in said, given
