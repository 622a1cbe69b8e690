"""`.ini` files, read into a list of `Setting`: a text each, and the place it came from.

By PufferLib 4.0's rules here, by 5.0's in `ini_files_5.py`; `versions.py` tells the files apart.
Nothing is understood here: `values.py` gives a text its type, `loading.py` puts it in its place.
"""

import configparser
import re
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.config.compatibility import BOT_EVAL, UNUSED, closest
from puffer_mlx.config.schema import KEYS
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import read_text

CONTROL = re.compile(r"[^\t\n\r\x20-\x7e\xa0-\U0010ffff]")


class Setting(NamedTuple):
    """One key as a file or the command line gives it, not yet understood."""

    section: str  # "base", "train", "sweep.train.gamma", …
    key: str
    text: str
    origin: str  # "configs/breakout.ini:12" or "command line"

    @property
    def name(self) -> str:
        """The key with its section: `train.gamma`."""
        return f"{self.section}.{self.key}"

    def __str__(self) -> str:
        """For messages: `train.gamma 0.9`, always one line."""
        plain = self.text.isprintable() and self.text
        return f"{self.name} {plain or repr(self.text)}"


def read_ini(path: Path, capitals: bool = False) -> list[Setting]:
    """The settings of an .ini file, in its order; keys in lower case, values stripped.

    Args:
        path: the file.
        capitals: keys keep theirs, as parameters of PufferLib 5.0's environments do.

    Raises:
        UserError: the file can't be read, isn't text or .ini, or has an unknown section.
    """
    name = relative_path(path)
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    if capitals:
        parser.optionxform = lambda optionstr: optionstr
    text = read_ini_text(path)
    try:
        parser.read_string(text)
    except configparser.DuplicateOptionError as error:
        message = f"{error.section}.{error.option} is set twice ({name}:{error.lineno})"
        raise UserError(message, "remove one of the two lines") from None
    except configparser.DuplicateSectionError as error:
        message = f"section [{error.section}] begins twice ({name}:{error.lineno})"
        raise UserError(message, "put its keys under one header") from None
    except configparser.MissingSectionHeaderError as error:
        message = f"{error.line.strip()!r} is before any section ({name}:{error.lineno})"
        raise UserError(message, "begin with a section, for example [train]") from None
    except configparser.ParsingError as error:
        number = error.errors[0][0]
        line = text.split("\n")[number - 1].strip()
        raise UserError(f"{line!r} has no value ({name}:{number})", "write key = value") from None

    lines = _line_numbers(text)
    for section in parser.sections():
        check_section(section, f"{name}:{lines.get((section, ''), '?')}")
    return [
        Setting(section, key, value, f"{name}:{lines.get((section, key.lower()), '?')}")
        for section in parser.sections()
        for key, value in parser[section].items()
    ]


def read_ini_text(path: Path) -> str:
    """The text of an .ini file.

    Raises:
        UserError: it can't be read, or isn't text.
    """
    name = relative_path(path)
    try:
        text = read_text(path)
    except OSError as error:
        raise UserError(
            f"{name} can't be read: {error.strerror}", "name a readable .ini file"
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"{name} is not a text file", "name an .ini file in UTF-8") from None
    if found := CONTROL.search(text):  # what is printed of it could paint over a message
        number = text.count("\n", 0, found.start()) + 1
        message = f"there is a control character, {found[0]!r} ({name}:{number})"
        raise UserError(message, "remove it")
    return text


def check_section(section: str, where: str) -> None:
    """Refuse a section that has no keys here.

    Raises:
        UserError: with the closest one.
    """
    unused = dict.fromkeys(name.partition(".")[0] for name in UNUSED)
    known = [*KEYS, "env", "sweep", BOT_EVAL, *unused]
    if section not in known and not section.startswith("sweep."):
        near = closest(section, known) or "train"
        raise UserError(f"unknown section [{section}] ({where})", f"did you mean [{near}]?")


def _line_numbers(text: str) -> dict[tuple[str, str], int]:
    """(section, key) -> line, counted from 1; a section's header has the key ""."""
    lines: dict[tuple[str, str], int] = {}
    section = ""
    for number, line in enumerate(text.split("\n"), 1):
        if header := re.match(r"\[(.+)\]", line):
            section = header[1]
            lines[section, ""] = number
        elif key := re.match(r"([^#;\s=:][^=:]*?)\s*[=:]", line):
            lines[section, key[1].lower()] = number
    return lines


def relative_path(path: Path) -> str:
    """A path as messages show it: relative where it is inside the working directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
