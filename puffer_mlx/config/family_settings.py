"""A family's settings, taken once the spaces of the environment are known.

A configuration is read before its environment is made, so with the settings of the family that is
assumed. When the spaces tell the family, the same files and options are read again.
"""

from dataclasses import replace

from puffer_mlx.config.families import AUTO, FAMILIES
from puffer_mlx.config.schema import KEYS, Config


def undecided(config: Config) -> bool:
    """Whether the environment's spaces will decide which family's settings count."""
    return config.python and config.base.family == AUTO and config.again is not None


def take_family(config: Config, family: str) -> None:
    """Change a configuration to what its files and options say with a family's settings.

    Args:
        config: is changed in place, except for keys that were set by hand since it was read.
        family: one of ``FAMILIES``.

    Raises:
        UserError: options don't go with the family's settings.
    """
    if config.again is None:  # not read from files
        return
    before, after = config.again(""), config.again(family)
    for section, keys in KEYS.items():
        own, was, new = (getattr(each, section) for each in (config, before, after))
        changed = {key: getattr(new, key) for key in keys if getattr(own, key) == getattr(was, key)}
        setattr(config, section, replace(own, **changed))  # whoever shares the old one keeps it
    still = [note for note in config.notes if note in after.notes]
    new = [note for note in after.notes if note not in before.notes]
    config.notes = list(dict.fromkeys([*still, *new]))
    config.unused = list(dict.fromkeys([*config.unused, *after.unused]))
    config.origins, config.files = after.origins, after.files
    config.chosen_by = after.chosen_by


def family_note(config: Config) -> str | None:
    """The line at the start of training; None for environments in C."""
    if not config.python:
        return None
    family = FAMILIES.get(config.base.family)
    kind = family.kind if family else "Python"
    files = config.files[1:]  # default.ini goes without saying
    return f"{config.env_name}: {kind}" + (f" ({', '.join(files)})" if files else "")
