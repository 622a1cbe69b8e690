"""A configuration as an .ini file that reads back as an equal one, and as plain dictionaries."""

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from puffer_mlx.config.schema import KEYS, Config
from puffer_mlx.config.values import parse_argument, unquoted
from puffer_mlx.system.files import publish

NOT_SETTINGS = {item.name for item in fields(Config) if not item.compare}


def to_dict(config: Config) -> dict[str, Any]:
    """The configuration as plain nested dictionaries that JSON can hold."""
    plain = replace(config, factory=None, objects={})  # asdict would copy them
    sections = {k: v for k, v in asdict(plain).items() if k not in NOT_SETTINGS}
    return {k: v for k, v in sections.items() if v or k != "bot_eval"}  # few have some


def ini_text(config: Config, comments: bool = False) -> str:
    """The configuration as an .ini file that loads back to an equal one.

    Args:
        config: what to write.
        comments: put every key's help, unit and range above it.
    """
    blocks: list[list[str]] = []
    for section, keys in KEYS.items():
        block = [f"[{section}]"]
        if section == "base" and config.env_name:
            block.append(f"env_name = {config.env_name}")
        for key, declared in keys.items():
            facts = "; ".join(filter(None, (declared.unit, declared.bounds)))
            if comments:
                block.append(f"# {declared.help}" + (f" ({facts})" if facts else ""))
            block.append(f"{key} = {_text(getattr(getattr(config, section), key))}")
        blocks.append(block)
    source = [f"source = {_text(config.source)}"] if config.source else []
    parameters = (f"{k} = {parameter_text(v, config.python)}" for k, v in config.env.items())
    blocks.append(["[env]", *source, *parameters])
    if config.bot_eval:
        others = (f"{k} = {parameter_text(v, False)}" for k, v in config.bot_eval.items())
        blocks.append(["[bot_eval]", *others])
    for section, lines in config.sweep.items():
        texts = (f"{key} = {text}".replace("\n", "\n\t") for key, text in lines.items())
        blocks.append([f"[{section}]", *texts])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _text(value: int | float | bool | str) -> str:
    """A value as a file spells it: the text that reads back as the same value."""
    if isinstance(value, str):
        return value if value == unquoted(value) else f'"{value}"'
    return f"{value:_}" if type(value) is int and value >= 1_000_000 else str(value)


def parameter_text(value: int | float | bool | str, python: bool) -> str:
    """An environment's parameter: the text that reads back as the same, type included."""
    if isinstance(value, str):
        return value if parse_argument(value) == value else f'"{value}"'
    return repr(value) if python else repr(value).removesuffix(".0")


def write_ini(config: Config, path: str | Path) -> None:
    """Write the effective configuration, published by rename: never half a file."""
    with publish(path) as temporary:
        temporary.write_text(ini_text(config), encoding="utf-8")


DEFAULT_HEADER = """\
# Every key, its meaning and its default.
# Generated: python -m puffer_mlx.config > configs/default.ini
# An environment's own file, configs/NAME.ini, holds only what differs.

"""
