"""A configuration that is read before the spaces of its environment are known, and after."""

from dataclasses import replace

from puffer_mlx.config.families import AUTO, FAMILIES
from puffer_mlx.config.schema import KEYS, Config


def undecided(config: Config) -> bool:
    """Whether the environment's spaces are yet to tell which family's settings count."""
    return config.python and config.base.family == AUTO and config.again is not None


def take_family(config: Config, family: str) -> None:
    """Have a configuration say what its files and options say for a family.

    Args:
        config: is changed, but for what somebody changed in it since it was read.
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
    said = {note: None for note in config.notes if note in after.notes}
    told = dict.fromkeys(note for note in after.notes if note not in before.notes)
    config.notes = [*said, *(note for note in told if note not in said)]
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
