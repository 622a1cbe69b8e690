"""Configurations from files, command lines and programs, checked.

Later sources win: the declared defaults, `configs/default.ini`, the environment's file, further
files, the command line. Files are PufferLib's `.ini` files, unchanged: those of 4.0 and of 5.0,
each read by its own rules. `configs/default.ini` is written from the declarations:
`python -m puffer_mlx.config > configs/default.ini`.
"""

import argparse
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from puffer_mlx.config.command_line import (
    Extra,
    Typed,
    build_parser,
    key_options,
    parse_options,
    typed_options,
    typed_texts,
)
from puffer_mlx.config.compatibility import closest
from puffer_mlx.config.finding import words_hint
from puffer_mlx.config.key import ARGUMENT, Setting
from puffer_mlx.config.option_names import every_key, is_used
from puffer_mlx.config.resolving import (
    FindFamily,
    fitted,
    placed,
    resolve,
    setting_of_program,
)
from puffer_mlx.config.scanning import Request, Scanned, scan
from puffer_mlx.config.schema import COMMAND_LINE, Config
from puffer_mlx.config.trust import Allowed
from puffer_mlx.config.values import unquoted
from puffer_mlx.errors import UserError
from puffer_mlx.system.import_string import load_object
from puffer_mlx.system.program import asks_for_help

REGISTRIES = "gym", "pettingzoo", "pufferlib"  # names before the colon that aren't modules


def load(
    name: str,
    argv: Sequence[str] = (),
    files: Sequence[str | Path] = (),
    family: str = "",
    allow_code: bool = False,
    training: bool = True,
    keywords: Mapping[str, Any] | None = None,
    factory: Callable[..., Any] | None = None,
    find_family: FindFamily | None = None,
) -> Config:
    """Return the checked configuration of an environment.

    Args:
        name: an environment, or the path of an .ini file.
        argv: options, as on the command line.
        files: further .ini files; they win over the environment's, options win over them.
        family: the family of an environment in Python (`families.py`). Empty: the one that its
            files name, else `vec.make` finds it out and adapts the configuration.
        allow_code: allow all code that files name. Code that ``name``, ``argv`` and ``keywords``
            name is always allowed: see ``puffer_mlx.config.trust``.
        training: False if the configuration won't be trained with: what only training needs isn't
            checked.
        keywords: a program's values by ``section.key``; they win over everything.
        factory: makes the environment in Python that ``name`` names; None: the name says where it
            is found.
        find_family: returns the family of a configuration's environment, by making it. It is called
            if no file names the family. None: `vec.make` finds it out, as above.

    Raises:
        UserError: anything wrong, all of it in one message.
    """
    if not name or name.startswith("-"):
        raise UserError(f"the first word must be an environment ({COMMAND_LINE})", words_hint())
    typed = typed_options(argv)
    settings = [setting_of_program(key, value) for key, value in (keywords or {}).items()]
    early = typed_texts(typed) | {setting.name: unquoted(setting.text) for setting in settings}
    request = Request(
        name,
        early,
        tuple(map(Path, files)),
        training=training,
        allow_code=allow_code or "--allow-code" in early,
        factory=factory,
    )
    scanned = scan(request, family)
    keys = _key_options(scanned, typed)
    arguments, _ = parse_options(build_parser(), typed, keys)
    if not scanned.named.python:
        _refuse_unknown(settings, keys.values())
    arguments = [*arguments, *settings]
    return resolve(scanned, arguments, find_family)


def _refuse_unknown(settings: Iterable[Setting], names: Collection[str]) -> None:
    """Refuse a program's keys that don't exist.

    Raises:
        UserError: with the closest one.
    """
    for setting in settings:
        if setting.name not in names:
            near = closest(setting.name, [*names])
            hint = f"did you mean {near}?" if near else every_key()
            raise UserError(f"there is no setting {setting} ({ARGUMENT})", hint)


def load_saved(path: Path, allow_code: Allowed = False) -> Config:
    """Return a saved run's configuration, which may be another person's; not for training.

    Args:
        path: the file.
        allow_code: True allows all code that the file names; or the names of allowed code.

    Raises:
        UserError: anything wrong, all of it in one message.
    """
    scanned = scan(Request("", {}, run=path, training=False, allow_code=allow_code is True))
    if not isinstance(allow_code, bool):
        scanned = scanned._replace(typed_names=allow_code)
    return fitted(placed(scanned), training=False)


def parse_command_line(
    argv: Sequence[str],
    extra: Extra | None = None,
    files: Sequence[str | Path] = (),
    family: str = "",
    run: Path | None = None,
    used: Sequence[str] | None = None,
    training: bool = True,
    find_family: FindFamily | None = None,
) -> tuple[Config, argparse.Namespace]:
    """Read a script's command line, `ENV [options]`; `--help` prints and exits.

    Args:
        argv: the words after the script's name.
        extra: called with the parser to add the script's own options.
        files: further .ini files.
        family: the family of an environment in Python, see `load`.
        run: a saved run's configuration, used instead of ENV's.
        used: sections and keys that have an effect in the script, besides [env]; None for all. A
            note names others that are typed.
        training: False if only what evaluations need is checked.
        find_family: as for `load`.

    Returns:
        The checked configuration, and the values of the script's own options.

    Raises:
        UserError: anything wrong, all of it in one message.
    """
    name, words = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("", argv)
    typed = typed_options(words)
    early = typed_texts(typed)
    help_asked = asks_for_help(early)
    if not name and not help_asked:
        message = f"the first word must be an environment ({COMMAND_LINE})"
        raise UserError(message, words_hint())
    allow_code = "--allow-code" in early
    request = Request(name, early, tuple(map(Path, files)), run, training, allow_code=allow_code)
    scanned = scan(request, family)
    parser = build_parser(extra, used, scanned.read.settings)
    if help_asked:
        parser.values = {**_constructor_defaults(name), **parser.values}
    arguments, options = parse_options(
        parser, typed, _key_options(scanned, typed, parser.keys), used
    )
    config = resolve(scanned, arguments, find_family)
    vars(options).pop("allow_code")  # the configuration has it
    idle = [setting.name for setting in arguments if not is_used(used, setting.name)]
    if idle and used is not None:
        config.notes.append(f"unused here: {', '.join(idle)} (--help all shows what is used)")
    return config, options


def _constructor_defaults(name: str) -> dict[str, str]:
    """Return the keys of [env] of a class that was typed as ``module:Class``, for help.

    Empty for other names, and for a class that can't be imported.
    """
    module, _, attribute = name.rpartition(":")
    if not module or module in REGISTRIES or not attribute.isidentifier():
        return {}
    try:
        parameters = inspect.signature(load_object(name)).parameters.values()
    except (UserError, TypeError, ValueError):
        return {}
    return {
        f"env.{each.name}": str(each.default)
        for each in parameters
        if each.default is not each.empty and each.name != "render_mode"
    }


def _key_options(
    scanned: Scanned, typed: Iterable[Typed], further: Iterable[str] = ()
) -> dict[str, str]:
    """Return the options that set keys of an environment, and the names of these keys.

    Args:
        scanned: the environment's files.
        typed: the options of the command line: environments in Python take any key of [env].
        further: names of keys that a script adds.
    """
    others = [f"env.{key}" for key in scanned.read.dialect.env]
    if scanned.named.python:
        words = (each.option.removeprefix("--env.") for each in typed)
        others += (f"env.{key.replace('-', '_')}" for key in words if not key.startswith("-"))
    return key_options(scanned.read.settings, [*others, *further])
