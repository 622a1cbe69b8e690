"""`.ini` files of PufferLib 4.0 and 5.0, read into a list of `Setting`.

`dialects.py` decides which release a file belongs to. Files of 4.0 are read as Python's
`configparser` reads them: a comment fills a line, ``=`` and ``:`` separate, indented lines
continue a value, and neither a section nor a key may be given twice. In files of 5.0

- a comment begins at ``#`` or ``;`` anywhere outside of quotes,
- quotes around a value aren't part of it, keys keep their capitals, and only ``=`` separates,
- a section may begin again, and of a key that is set twice the later value counts,
- numbers may have underscores, white space, exponents, and be hexadecimal; values of integer keys
  and switches are truncated towards zero.

Upstream reads text as the number 0 where it expects one, ``None`` and ``yes`` too: here it is
refused. Types of values are checked later: `values.py` and `resolving.py`.

A file is read once and cached until its time or size changes.
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

CONTROL = re.compile(r"[^\t\n\r\x20-\x7e\xa0-\U0010ffff]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
HEXADECIMAL = re.compile(r"[+-]?0[xX]([\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)([pP][+-]?\d+)?")
OPTION = re.compile(r"(.*?)\s*[=:]\s*(.*)")
RECENT = 2e9  # nanoseconds: a younger file may change again and keep its time
INDENTED = re.compile(r"^[ \t]+[^\s#;]", re.MULTILINE)
BEGIN = "begin with a section, for example [train]"


class Line(NamedTuple):
    """A section's header, a key with its value, or a line without a separator.

    Args:
        number: counted from 1.
        section: the section; empty before the first one.
        key: the key as written; empty for a header.
        text: the value; None for a header, and for a line without a separator.
    """

    number: int
    section: str
    key: str
    text: str | None


class IniFile:
    """The text of an .ini file, parsed once by each release's rules.

    Args:
        text: the text; bytes that aren't UTF-8 are surrogates.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def raw(self) -> dict[str, str]:
        """Values by section and key in lower case. A header has the value ""."""
        values: dict[str, str] = {}
        text = CONTROL.sub(" ", self.text).encode("utf-8", "surrogateescape")
        for line in rows(text.decode("utf-8", "replace"), "=:"):
            if not line.key or line.text is not None:
                values[f"{line.section}.{line.key.lower()}"] = line.text or ""
        return values

    @cached_property
    def texts(self) -> dict[str, str]:
        """The same without quotes."""
        return {name: unquoted(text) for name, text in self.raw.items()}

    @cached_property
    def is_indented(self) -> bool:
        """True if a line is indented: in 4.0 it may continue a value, in 5.0 it is a setting."""
        return bool(INDENTED.search(self.text))


def ini_file(path: Path) -> IniFile:
    """Return an .ini file; it is read only if it changed since the last call.

    Raises:
        OSError: it can't be read.
    """
    status = path.stat()
    stamp = status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino
    if time.time_ns() - status.st_ctime_ns < RECENT:
        return IniFile(read_text(path, "surrogateescape"))
    return _cached(path.absolute(), stamp)


@lru_cache(maxsize=256)
def _cached(path: Path, stamp: tuple[int, ...]) -> IniFile:
    """Read a file; ``stamp`` changes when the file does."""
    return IniFile(read_text(path, "surrogateescape"))


def file_texts(path: Path) -> dict[str, str]:
    """Return a file's values as text by section and key in lower case; {} if it can't be read.

    Reading its settings reports why.
    """
    try:
        return ini_file(path).texts
    except OSError:
        return {}


def checked_text(path: Path) -> str:
    """Return the text of an .ini file.

    Raises:
        UserError: it can't be read, isn't text, or contains control characters.
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
    if match := CONTROL.search(text):  # printed, it could paint over a message
        number = text.count("\n", 0, match.start()) + 1
        message = f"there is a control character, {match[0]!r} ({name}:{number})"
        raise UserError(message, "remove it")
    return text


def read_ini(path: Path, capitals: bool = False) -> list[Setting]:
    """Return the settings of a file of PufferLib 4.0's form, in its order.

    Keys are in lower case. One in quotes keeps its capitals: ``"maxSteps" = 5``.

    Args:
        path: the file.
        capitals: True if all keys keep theirs, as parameters of PufferLib 5.0's environments do.

    Raises:
        UserError: the file can't be read, isn't text or .ini, or has an unknown section.
    """
    text = checked_text(path)
    name = relative_path(path)
    settings: dict[tuple[str, str], Setting] = {}
    headers: dict[str, int] = {}
    for number, section, key, value in lines_of_4(text, name):
        where = f"{name}:{number}"
        if value is None and section in headers:
            message = f"section [{section}] begins twice ({where})"
            raise UserError(message, "put its keys under one header")
        if value is None:
            headers[section] = number
            continue
        if not capitals and key == unquoted(key):
            key = key.lower()
        if (section, key) in settings:
            raise UserError(
                f"{section}.{key} is set twice ({where})", "remove one of the two lines"
            )
        settings[section, key] = Setting(section, unquoted(key), value, where)
    for section, number in headers.items():
        check_section(section, f"{name}:{number}")
    return list(settings.values())


def lines_of_4(text: str, name: str) -> list[Line]:
    """Return headers, and keys with their values, as ``configparser`` parses them.

    Args:
        text: the file's text.
        name: the file's name in messages.

    Raises:
        UserError: a line is neither, or is before the first header.
    """
    found: list[tuple[int, str, str, list[str]]] = []  # number, section, key, lines of the value
    section = ""
    indent = 0  # of the line that began the last value
    for number, line in enumerate(text.split("\n"), 1):
        word = line.strip()
        if word.startswith(("#", ";")):
            continue
        spaces = len(line) - len(line.lstrip())
        if found and found[-1][2] and (not word or spaces > indent):
            found[-1][3].append(word)
            continue
        if not word:
            continue
        indent = spaces
        if header := re.match(r"\[(.+)\]", word):
            section = header[1]
            found.append((number, section, "", []))
        elif not section:
            raise UserError(f"{word!r} is before any section ({name}:{number})", BEGIN)
        elif (pair := OPTION.fullmatch(word)) and pair[1]:
            found.append((number, section, pair[1], [pair[2]]))
        else:
            raise UserError(f"{word!r} has no value ({name}:{number})", "write key = value")
    return [Line(n, s, key, "\n".join(v).rstrip() if key else None) for n, s, key, v in found]


def check_section(section: str, where: str) -> None:
    """Refuse an unknown section.

    Raises:
        UserError: it names the closest section.
    """
    unused = dict.fromkeys(name.partition(".")[0] for name in UNUSED)
    known = [*KEYS, "env", "sweep", BOT_EVAL, *unused]
    if section not in known and not section.startswith("sweep."):
        near = closest(section, known) or "train"
        raise UserError(f"unknown section [{section}] ({where})", f"did you mean [{near}]?")


def relative_path(path: Path) -> str:
    """Return a path as messages show it: relative if it is inside the working directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def read_ini_5(path: Path) -> list[Setting]:
    """Return the settings of a file of PufferLib 5.0, in its order, each key in its last place.

    Raises:
        UserError: the file can't be read, isn't text or .ini, or has an unknown section.
    """
    text = checked_text(path)
    name = relative_path(path)
    settings: dict[str, Setting] = {}
    for number, section, key, value in rows(text, "="):
        where = f"{name}:{number}"
        if not key and value is None:
            check_section(section, where)
            continue
        if not section:
            line = uncommented(text.split("\n")[number - 1])
            raise UserError(f"{line!r} is before any section ({where})", BEGIN)
        if value is None:
            raise UserError(f"{key!r} has no value ({where})", "write key = value")
        setting = Setting(section, key, value, where)
        settings.pop(setting.name, None)
        settings[setting.name] = _plain(setting)
    return list(settings.values())


def rows(text: str, separators: str) -> Iterator[Line]:
    """Yield the lines of a text in 5.0's form that aren't empty, without comments.

    Args:
        text: the file's text.
        separators: characters; the first one in a line ends the key.
    """
    section = ""
    for number, line in enumerate(text.split("\n"), 1):
        line = uncommented(line)
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
            yield Line(number, section, "", None)
            continue
        at = min((line.find(sign) for sign in separators if sign in line), default=0)
        if at:
            yield Line(number, section, line[:at].strip(), line[at + 1 :].strip())
        elif line:
            yield Line(number, section, line, None)


def uncommented(line: str) -> str:
    """Return a line without its comment and outer white space; quotes protect ``#`` and ``;``."""
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
    """Return a setting with its number as Python writes it; other values stay, with quotes."""
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
    if setting.section.partition(".")[0] == "sweep":
        return setting._replace(text=word if number else text)
    return setting._replace(text=word) if number else setting


def _declared(setting: Setting) -> Key | None:
    """Return the declaration of a key under our name or another release's."""
    renamed = RENAMES.get(setting.name)
    return DECLARED.get(renamed.name if renamed else setting.name)
