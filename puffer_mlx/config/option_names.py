"""Names of keys for users: options on a command line, keywords in Python."""

from collections.abc import Sequence

from puffer_mlx.config.compatibility import REMOVED, RENAMES, SWEEP_KEYS, UNUSED
from puffer_mlx.config.key import EVERY_KEY_HINT
from puffer_mlx.config.schema import DECLARED, KEYS
from puffer_mlx.system import program


def option(section: str, key: str) -> str:
    """Return the command-line option for a configuration key: `--train.learning-rate`, or `--seed`.

    Keys of section [base] need no section.
    """
    return "--" + f"{section}.{key}".removeprefix("base.").replace("_", "-")


KEY_OPTIONS = {  # option -> key that it sets, for all environments
    option(*name.split(".", 1)): name
    for name in [*DECLARED, *UNUSED, *REMOVED, *RENAMES, *SWEEP_KEYS, "env.source"]
}
for _name in DECLARED:  # a key that is in only one section may be typed without it
    _key = _name.partition(".")[2]
    if sum(_key in keys for keys in KEYS.values()) == 1:
        KEY_OPTIONS.setdefault(option("base", _key), _name)


def how_to_set(name: str, value: object = "") -> str:
    """Return the option or the keyword that sets a key, for hints.

    In a command it is an option, ``--train.gamma 0.9``; in Python a keyword, ``gamma=0.9``.

    Args:
        name: Key with its section.
        value: A value, or text with several values, such as ``"4 or 8"``; empty for the name alone.
    """
    if program.is_command():
        value = int(value) if isinstance(value, bool) else value
        return f"{option(*name.split('.', 1))} {value}".rstrip()
    section, _, key = name.partition(".")
    if section == "sweep":  # Python programs can't set this section
        return f"[sweep] {key} = {value} in an .ini file"
    if value != "" and name in DECLARED and DECLARED[name].kind is str:
        value = repr(value)
    if KEY_OPTIONS.get(option("base", key)) != name:  # a key of [env], or in several sections
        return f'{{"{name}": {value}}}' if value != "" else name
    return f"{key}={value}" if value != "" else key


def every_key() -> str:
    """Return a hint for error messages that says how to list all configuration keys."""
    return "--help all explains every key" if program.is_command() else EVERY_KEY_HINT


def is_used(used: Sequence[str] | None, name: str) -> bool:
    """Return True if a configuration key has an effect in a command.

    Args:
        used: Sections and keys that the command uses, besides [env]; None for all.
        name: Key with its section.
    """
    if name in UNUSED:
        return False
    if name in RENAMES:
        name = RENAMES[name].name
    return used is None or name in used or name.partition(".")[0] in ("env", *used)


def may_be_bare(name: str) -> bool:
    """Return True if the option for a configuration key may have no value: ``--key``.

    It then means ``--key true``.
    """
    if name in RENAMES and not RENAMES[name].off:
        name = RENAMES[name].name
    declared = DECLARED.get(name)
    return isinstance(declared.default, bool) if declared else name != "env.source"
