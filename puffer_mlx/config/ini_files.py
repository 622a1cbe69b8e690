"""`.ini` files, read into a list of `Setting`: a text each, and the place it came from.

`dialects.py` tells files of PufferLib 4.0 and 5.0 apart. By 5.0's rules, which `read_ini_5` obeys,

- a comment begins at ``#`` or ``;`` anywhere outside of quotes,
- quotes around a value aren't part of it, keys keep their capitals, and only ``=`` separates,
- a section may begin again, and of a key that is set twice the later value counts,
- numbers may have underscores, white space, exponents, and be hexadecimal; what a whole number's or
  a switch's key is given is cut off towards zero.

Upstream reads text as the number 0 where it wants one, ``None`` and ``yes`` as well: here it is
refused. Nothing else is understood here: `values.py` gives a text its type, `loading.py` puts it in
its place.
"""

import configparser
import re
from pathlib import Path

from puffer_mlx.config.compatibility import BOT_EVAL, RENAMES, UNUSED, closest
from puffer_mlx.config.key import Key, Setting
from puffer_mlx.config.schema import DECLARED, KEYS
from puffer_mlx.config.values import unquoted
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import read_text

CONTROL = re.compile(r"[^\t\n\r\x20-\x7e\xa0-\U0010ffff]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
HEXADECIMAL = re.compile(r"[+-]?0[xX]([\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)([pP][+-]?\d+)?")


def read_ini(path: Path, capitals: bool = False) -> list[Setting]:
    """Return the settings of an .ini file, in its order; values are stripped.

    Keys are in lower case. One in quotes keeps its capitals: ``"maxSteps" = 5``.

    Args:
        path: The file.
        capitals: True if all keys keep theirs, as parameters of PufferLib 5.0's environments do.

    Raises:
        UserError: The file can't be read, isn't text or .ini, or has an unknown section.
    """
    name = relative_path(path)
    parser = configparser.ConfigParser(interpolation=None, default_section="")

    def spelled(optionstr: str) -> str:
        return optionstr if capitals or optionstr != unquoted(optionstr) else optionstr.lower()

    parser.optionxform = spelled
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
        Setting(section, unquoted(key), value, f"{name}:{lines.get((section, key.lower()), '?')}")
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
    if match := CONTROL.search(text):  # what is printed of it could paint over a message
        number = text.count("\n", 0, match.start()) + 1
        message = f"there is a control character, {match[0]!r} ({name}:{number})"
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


def read_ini_5(path: Path) -> list[Setting]:
    """The settings of a file of PufferLib 5.0's, in its order, each key in its last place.

    Raises:
        UserError: the file can't be read, isn't text or .ini, or has an unknown section.
    """
    name = relative_path(path)
    settings: dict[str, Setting] = {}
    section = ""
    for number, line in enumerate(read_ini_text(path).split("\n"), 1):
        line, where = uncommented(line), f"{name}:{number}"
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
            check_section(section, where)
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not line:
            continue
        if not section:
            raise UserError(
                f"{line!r} is before any section ({where})",
                "begin with a section, for example [train]",
            )
        if not (key and equals):
            raise UserError(f"{line!r} has no value ({where})", "write key = value")
        setting = Setting(section, key, value, where)
        settings.pop(setting.name, None)
        settings[setting.name] = _plain(setting)
    return list(settings.values())


def uncommented(line: str) -> str:
    """A line without its comment and the white space around it; quotes keep ``#`` and ``;``."""
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "#;":
            return line[:at].strip()
    return line.strip()


def _plain(setting: Setting) -> Setting:
    """A setting whose number is spelled as Python spells it; texts stay as they are, in quotes."""
    key = _declared(setting)
    if key and key.kind is str:
        return setting
    text = unquoted(setting.text)
    word = re.sub(r"[_\s]", "", text)
    if HEXADECIMAL.fullmatch(word):
        word = repr(float.fromhex(word))
    number = NUMBER.fullmatch(word)
    if key and isinstance(key.default, bool):
        if not number and text.lower() in ("yes", "no", "on", "off"):
            message = f"{setting} is neither true nor false ({setting.origin})"
            raise UserError(message, "true or false; PufferLib 5.0 would read 0")
        return setting._replace(text=str(int(int(float(word)) != 0)) if number else text)
    if setting.section.partition(".")[0] == "sweep":  # nobody takes these apart again
        return setting._replace(text=word if number else text)
    return setting._replace(text=word) if number else setting


def _declared(setting: Setting) -> Key | None:
    """The declaration of a key, whichever name it has here."""
    renamed = RENAMES.get(setting.name)
    return DECLARED.get(renamed.name if renamed else setting.name)
