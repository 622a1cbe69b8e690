"""`.ini` files by PufferLib 5.0's rules, which differ from those of 4.0 (`ini_files.py`).

- A comment begins at ``#`` or ``;`` anywhere outside of quotes.
- Quotes around a value aren't part of it; keys keep their capitals; only ``=`` separates.
- A section may begin again; of a key that is set twice the later value counts.
- Numbers may have underscores, white space, exponents, and be hexadecimal. What a whole number's
  or a switch's key is given is cut off towards zero.

Upstream reads text as the number 0 where it wants one, ``None`` and ``yes`` as well: here it is
refused.
"""

import re
from pathlib import Path

from puffer_mlx.config.compatibility import RENAMES
from puffer_mlx.config.ini_files import Setting, check_section, read_ini_text, relative_path
from puffer_mlx.config.key import Key
from puffer_mlx.config.schema import KEYS
from puffer_mlx.config.values import unquoted
from puffer_mlx.errors import UserError

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
HEXADECIMAL = re.compile(r"[+-]?0[xX]([\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)([pP][+-]?\d+)?")


def read_ini_5(path: Path) -> list[Setting]:
    """The settings of a file of PufferLib 5.0's, in its order, each key in its last place.

    Raises:
        UserError: the file can't be read, isn't text or .ini, or has an unknown section.
    """
    name = relative_path(path)
    found: dict[str, Setting] = {}
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
        found.pop(setting.name, None)
        found[setting.name] = _plain(setting)
    return list(found.values())


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
    section, key = renamed[:2] if renamed else setting[:2]
    return KEYS.get(section, {}).get(key)
