"""Read `.ini` files of PufferLib 4.0 and 5.0 into lists of `Setting`.

`releases.py` finds the release of a file. Files of 4.0 follow the rules of Python's
`configparser`: a comment fills a line, ``=`` or ``:`` is between key and value, indented lines
continue a value, and no section or key may be repeated. In files of 5.0:

- a comment begins at ``#`` or ``;`` anywhere outside of quotes,
- quotes around a value aren't part of it, keys keep their capitals, and only ``=``
  is between key and value,
- sections and keys may be repeated; the last value of a key wins,
- numbers may have underscores, white space and exponents, and may be hexadecimal; values of integer
  keys and switches are truncated towards zero.

Where 5.0 expects a number, it reads any other text as 0, even ``None`` and ``yes``. Here such text
is refused. The types of values are checked later: `values.py` and `resolving.py`.

A file is cached until its time or size changes.
"""

import re
import time
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.config.compatibility import BOT_EVAL, RENAMES, UNUSED, closest
from puffer_mlx.config.key import Key, Setting
from puffer_mlx.config.schema import DECLARED, KEYS
from puffer_mlx.config.values import unquoted
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import read_text

CONTROL_CHARACTER = re.compile(r"[^\t\n\r\x20-\x7e\xa0-\U0010ffff]")
DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
HEXADECIMAL = re.compile(r"[+-]?0[xX]([\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)([pP][+-]?\d+)?")
KEY_VALUE = re.compile(r"(.*?)\s*[=:]\s*(.*)")  # a line of 4.0: key and value
MIN_AGE_NS = 2e9  # a younger file isn't cached: it may change without a new time stamp
INDENTED = re.compile(r"^[ \t]+[^\s#;]", re.MULTILINE)
SECTION_HINT = "begin with a section, for example [train]"


class Line(NamedTuple):
    """One parsed line of an .ini file: a section's header, a key with its value, or neither.

    Args:
        number: Line number, from 1.
        section: Section; empty before the first one.
        key: Key as written; empty for a header.
        text: Value; None for a header, and for a line without a separator.
    """

    number: int
    section: str
    key: str
    text: str | None


class IniFile:
    """The text of an .ini file, with its parsed values, which are computed when needed and cached.

    Args:
        text: The text, decoded with ``surrogateescape``, so that a wrong byte can be reported.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def raw(self) -> dict[str, str]:
        """Values in an .ini file of any PufferLib release, by lower-case ``section.key``.

        A header of a section is included as ``section.`` with the value "". Characters that
        ``checked_text`` refuses are replaced.
        """
        values: dict[str, str] = {}
        encoded = CONTROL_CHARACTER.sub(" ", self.text).encode("utf-8", "surrogateescape")
        for line in lines_of_5(encoded.decode("utf-8", "replace"), "=:"):
            if not line.key or line.text is not None:
                values[f"{line.section}.{line.key.lower()}"] = line.text or ""
        return values

    @cached_property
    def texts(self) -> dict[str, str]:
        """Values in the .ini file without their quotes, by lower-case ``section.key``."""
        return {name: unquoted(text) for name, text in self.raw.items()}

    @cached_property
    def has_indented_lines(self) -> bool:
        """True if the .ini file has an indented line.

        PufferLib 4.0 reads such a line as the continuation of a value, 5.0 as a setting.
        """
        return bool(INDENTED.search(self.text))


def ini_file(path: Path) -> IniFile:
    """Return the parsed content of an .ini file, from a cache if the file hasn't changed.

    Raises:
        OSError: If it can't be read.
    """
    status = path.stat()
    stamp = status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino
    if time.time_ns() - status.st_ctime_ns < MIN_AGE_NS:
        return IniFile(read_text(path, "surrogateescape"))
    return _read_cached(path.absolute(), stamp)


@lru_cache(maxsize=256)
def _read_cached(path: Path, stamp: tuple[int, ...]) -> IniFile:
    """Read an .ini file, or return the cached content if path and ``stamp`` are the same as before.

    The stamp (size and time, for example) changes with the file.
    """
    return IniFile(read_text(path, "surrogateescape"))


def file_texts(path: Path) -> dict[str, str]:
    """Return the values in an .ini file by lower-case ``section.key``; {} if it is unreadable."""
    try:
        return ini_file(path).texts
    except OSError:  # reading the settings reports the reason
        return {}


def checked_text(path: Path) -> str:
    """Return the text of an .ini file after checking its characters.

    Raises:
        UserError: If it can't be read, isn't text, or contains control characters.
    """
    name = relative_path(path)
    try:
        text = ini_file(path).text
    except OSError as error:
        raise UserError(
            f"{name} can't be read: {error.strerror}", "name a readable .ini file"
        ) from None
    if re.search(r"[\ud800-\udfff]", text):
        raise UserError(f"{name} is not a text file", "name an .ini file in UTF-8")
    if match := CONTROL_CHARACTER.search(
        text
    ):  # printed in a message, it could control the terminal
        number = text.count("\n", 0, match.start()) + 1
        message = f"there is a control character, {match[0]!r} ({name}:{number})"
        raise UserError(message, "remove it")
    return text


def read_ini(path: Path, keep_capitals: bool = False) -> list[Setting]:
    """Return the settings of an .ini file by PufferLib 4.0's rules, in the order of its lines.

    Keys are in lower case. A key in quotes keeps its capitals: ``"maxSteps" = 5``.

    Args:
        path: The file.
        keep_capitals: True if all keys keep their capitals, as in PufferLib 5.0's environments.

    Raises:
        UserError: If the file can't be read, isn't an .ini file, or has an unknown section.
    """
    text = checked_text(path)
    name = relative_path(path)
    settings: dict[tuple[str, str], Setting] = {}
    headers: dict[str, int] = {}
    for number, section, key, value in lines_of_4(text, name):
        location = f"{name}:{number}"
        if value is None and section in headers:
            message = f"section [{section}] begins twice ({location})"
            raise UserError(message, "put all its keys below one header")
        if value is None:
            headers[section] = number
            continue
        if not keep_capitals and key == unquoted(key):
            key = key.lower()
        if (section, key) in settings:
            raise UserError(
                f"{section}.{key} is set twice ({location})", "remove one of the two lines"
            )
        settings[section, key] = Setting(section, unquoted(key), value, location)
    for section, number in headers.items():
        check_section(section, f"{name}:{number}")
    return list(settings.values())


def lines_of_4(text: str, name: str) -> list[Line]:
    """Return an .ini file's headers and keys with values, as ``configparser`` parses them.

    Args:
        text: The file's text.
        name: The file's name, for messages.

    Raises:
        UserError: If a line is neither a header nor a key with a value, or a key is before the
            first header.
    """
    entries: list[tuple[int, str, str, list[str]]] = []  # number, section, key, lines of the value
    section = ""
    value_lines: list[str] | None = None  # of the last key; None after a header
    indent = 0  # number of blanks before the last header or key
    for number, line in enumerate(text.split("\n"), 1):
        word = line.strip()
        if word.startswith(("#", ";")):
            continue
        spaces = len(line) - len(line.lstrip())
        if value_lines is not None and (not word or spaces > indent):
            value_lines.append(word)
            continue
        if not word:
            continue
        indent = spaces
        if header := re.match(r"\[(.+)\]", word):
            section = header[1]
            value_lines = None
            entries.append((number, section, "", []))
        elif not section:
            raise UserError(f"{word!r} is before any section ({name}:{number})", SECTION_HINT)
        elif (pair := KEY_VALUE.fullmatch(word)) and pair[1]:
            value_lines = [pair[2]]
            entries.append((number, section, pair[1], value_lines))
        else:
            raise UserError(f"{word!r} has no value ({name}:{number})", "write key = value")
    return [
        Line(number, section, key, "\n".join(value).rstrip() if key else None)
        for number, section, key, value in entries
    ]


def check_section(section: str, location: str) -> None:
    """Raise a UserError for an unknown section of an .ini file, with the closest one as a hint.

    Args:
        section: Section of the file.
        location: File and line, for the message.
    """
    unused = dict.fromkeys(name.partition(".")[0] for name in UNUSED)
    sections = [*KEYS, "env", "sweep", BOT_EVAL, *unused]
    if section not in sections and not section.startswith("sweep."):
        similar = closest(section, sections) or "train"
        raise UserError(f"unknown section [{section}] ({location})", f"did you mean [{similar}]?")


def relative_path(path: Path) -> str:
    """Return a path for messages: relative if it is inside the working directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def read_ini_5(path: Path) -> list[Setting]:
    """Return the settings of an .ini file by PufferLib 5.0's rules, in the order of its lines.

    A repeated key has its last value and position.

    Raises:
        UserError: If the file can't be read, isn't an .ini file, or has an unknown section.
    """
    text = checked_text(path)
    name = relative_path(path)
    settings: dict[str, Setting] = {}
    for number, section, key, value in lines_of_5(text, "="):
        location = f"{name}:{number}"
        if not key and value is None:
            check_section(section, location)
            continue
        if not section:
            line = uncommented(text.split("\n")[number - 1])
            raise UserError(f"{line!r} is before any section ({location})", SECTION_HINT)
        if value is None:
            raise UserError(f"{key!r} has no value ({location})", "write key = value")
        setting = Setting(section, key, value, location)
        settings.pop(setting.name, None)
        settings[setting.name] = _with_python_number(setting)
    return list(settings.values())


def lines_of_5(text: str, separators: str) -> Iterator[Line]:
    """Yield the headers and keys of an .ini file by PufferLib 5.0's rules, without comments.

    Args:
        text: The file's text.
        separators: Characters that end a key.
    """
    section = ""
    for number, line in enumerate(text.split("\n"), 1):
        line = uncommented(line)
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
            yield Line(number, section, "", None)
            continue
        at = min((line.find(sign) for sign in separators if sign in line), default=0)
        if at > 0:  # at 0 there is no key, so the line is one without a separator
            yield Line(number, section, line[:at].strip(), line[at + 1 :].strip())
        elif line:
            yield Line(number, section, line, None)


def uncommented(line: str) -> str:
    """Return a line of an .ini file without its comment; quotes protect ``#`` and ``;``."""
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "#;":
            return line[:at].strip()
    return line.strip()


def _with_python_number(setting: Setting) -> Setting:
    """Return a setting from a PufferLib 5.0 file with its number as Python writes it: 0x10 as 16.0.

    Settings without a number are unchanged, except that those of [sweep] lose their quotes.

    Raises:
        UserError: If a switch is ``yes``, ``no``, ``on`` or ``off``.
    """
    key = _declaration(setting)
    if key and key.kind is str:
        return setting
    text = unquoted(setting.text)
    word = re.sub(r"[_\s]", "", text)
    if HEXADECIMAL.fullmatch(word):
        word = repr(float.fromhex(word))
    number = DECIMAL.fullmatch(word)
    if key and isinstance(key.default, bool):
        if not number and text.lower() in ("yes", "no", "on", "off"):
            message = f"{setting} is neither true nor false ({setting.origin})"
            raise UserError(message, "true or false; PufferLib 5.0 reads it as 0")
        if not number:
            return setting._replace(text=text)
        truncated = int(float(word))  # as 5.0 does: 0.5 is false
        return setting._replace(text="1" if truncated else "0")
    if setting.section.partition(".")[0] == "sweep":  # its texts are read as they are
        return setting._replace(text=word if number else text)
    return setting._replace(text=word) if number else setting


def _declaration(setting: Setting) -> Key | None:
    """Return the declaration (type, limits, help) of a setting's key; None if undeclared.

    Keys of another release are looked up by their new names.
    """
    renamed = RENAMES.get(setting.name)
    return DECLARED.get(renamed.name if renamed else setting.name)
