"""Write a configuration as an .ini file that loads back equal, or as plain dictionaries."""

import re
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from puffer_mlx.config.ini_files import CONTROL_CHARACTER, uncommented
from puffer_mlx.config.schema import KEYS, Config
from puffer_mlx.config.values import parse_argument, parse_parameter, unquoted
from puffer_mlx.system.files import publish

NOT_SETTINGS = {item.name for item in fields(Config) if not item.compare}


def to_dict(config: Config) -> dict[str, Any]:
    """Return the configuration as nested dictionaries for JSON."""
    plain = replace(config, factory=None, objects={})  # asdict would copy these objects
    values = {name: value for name, value in asdict(plain).items() if name not in NOT_SETTINGS}
    if not values["bot_eval"]:
        del values["bot_eval"]
    return values


def ini_text(config: Config, comments: bool = False) -> str:
    """Return the configuration as an .ini file that loads back equal.

    Args:
        config: Configuration to write.
        comments: True to put help, unit and range above every key.
    """
    blocks: list[list[str]] = []
    for section, keys in KEYS.items():
        block = [f"[{section}]"]
        if section == "base" and config.env_name:
            block.append(_setting_line("env_name", _name_text(config.env_name)))
        for key, declared in keys.items():
            facts = "; ".join(filter(None, (declared.unit, declared.bounds)))
            if comments:
                block.append(f"# {declared.help}" + (f" ({facts})" if facts else ""))
            block.append(_setting_line(key, _text(getattr(getattr(config, section), key))))
        blocks.append(block)
    source = [_setting_line("source", _source_text(config.source))] if config.source else []
    parameters = (
        _setting_line(_key_text(key, config.python), parameter_text(value, config.python))
        for key, value in config.env.items()
    )
    blocks.append(["[env]", *source, *parameters])
    if config.bot_eval:
        parameters = (
            _setting_line(key, parameter_text(value, False))
            for key, value in config.bot_eval.items()
        )
        blocks.append(["[bot_eval]", *parameters])
    for section, lines in config.sweep.items():
        texts = (f"{key} = {text}".replace("\n", "\n\t") for key, text in lines.items())
        blocks.append([f"[{section}]", *texts])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _setting_line(key: str, text: str) -> str:
    """Return the line of an .ini file that sets a key: ``key = text``, or ``key := literal``."""
    return f"{key} :{text}" if text.startswith("= ") else f"{key} = {text}"


def _key_text(key: str, python: bool) -> str:
    """Return an environment argument's name as an .ini file's key, in quotes if it has capitals."""
    return f'"{key}"' if python and key != key.lower() else key


def _name_text(name: str) -> str:
    """Return an environment's name for an .ini file: a literal if it has blanks or quotes."""
    plain = _fits_line(name) and not re.search(r"[\s#;='\"]", name)
    return name if plain else f"= {_literal(name)}"


def _source_text(folder: str) -> str:
    """Return the path of a folder of C sources as written in an .ini file."""
    return _spelled(folder, unquoted, lambda text: unquoted(uncommented(text)))


def _text(value: int | float | bool | str) -> str:
    """Return a configuration value as text for an .ini file that is read back as the same value."""
    if isinstance(value, str):
        return _spelled(value, unquoted)
    return f"{value:_}" if type(value) is int and value >= 1_000_000 else str(value)


def parameter_text(value: Any, python: bool) -> str:
    """Return an environment parameter as text for an .ini file that is read back unchanged."""
    if isinstance(value, str):
        return _spelled(value, parse_argument, lambda t: parse_argument(t, True), parse_parameter)
    if python and not isinstance(value, bool | int | float):
        return f"= {value!r}"
    return repr(value) if python else repr(value).removesuffix(".0")


def _fits_line(text: str) -> bool:
    """Return True if a text can be written in one line of a UTF-8 file."""
    return not (CONTROL_CHARACTER.search(text) or re.search(r"[\n\r\ud800-\udfff]", text))


def _spelled(value: str, *readers: Callable[[str], Any]) -> str:
    """Return a text as written in an .ini file: unchanged, in quotes, or as a Python literal.

    The plain and the quoted form are used only if all ``readers``, functions that parse a file's
    text, return the original text.
    """
    for text in value, f'"{value}"':
        fits = text == text.strip() and _fits_line(text)
        if fits and not text.startswith("=") and all(read(text) == value for read in readers):
            return text
    return f"= {_literal(value)}"


def _literal(value: str) -> str:
    """Return a text as a quoted Python literal that contains no ``#``, ``;`` or inner quotes."""

    def escaped(letter: str) -> str:
        if letter in "#;'\"":
            return f"\\x{ord(letter):02x}"
        printable = letter.isprintable() and letter != "\\"
        return letter if printable else letter.encode("unicode_escape").decode()

    return f"'{''.join(map(escaped, value))}'"


def write_ini(config: Config, path: str | Path) -> None:
    """Write a configuration to an .ini file in one step, so no reader sees it incomplete."""
    with publish(path) as temporary:
        temporary.write_text(ini_text(config), encoding="utf-8")


DEFAULT_HEADER = """\
# Every key, its meaning and its default.
# Generated: python -m puffer_mlx.config > configs/default.ini
# An environment's file, configs/NAME.ini, has only the keys that differ.

"""
