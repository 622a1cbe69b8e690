"""Load and check configurations from files, command lines and programs.

Later sources win: the declared defaults, `configs/default.ini`, the environment's file, further
files, the command line. PufferLib's `.ini` files can be used unchanged; files of 4.0 and of 5.0 are
read by different rules. `configs/default.ini` is generated from the declarations:
`python -m puffer_mlx.config > configs/default.ini`.
"""

import argparse
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from puffer_mlx.config.command_line import (
    AddOptions,
    TypedOption,
    build_parser,
    options_that_set_keys,
    parse_options,
    typed_options,
    typed_values,
)
from puffer_mlx.config.compatibility import closest
from puffer_mlx.config.finding import env_hint
from puffer_mlx.config.key import ARGUMENT, Setting
from puffer_mlx.config.option_names import every_key, is_used
from puffer_mlx.config.resolving import (
    FindFamily,
    apply_settings,
    fit_and_validate,
    resolve,
    setting_of_program,
)
from puffer_mlx.config.scanning import Request, ScannedFiles, scan_files
from puffer_mlx.config.schema import COMMAND_LINE, Config
from puffer_mlx.config.trust import Allowed
from puffer_mlx.config.values import unquoted
from puffer_mlx.errors import UserError
from puffer_mlx.system.import_string import load_object
from puffer_mlx.system.program import asks_for_help

REGISTRIES = "gym", "pettingzoo", "pufferlib"  # prefixes of names (gym:ID) that aren't modules


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
    """Load, check and return the configuration of an environment.

    Args:
        name: Environment, or path of an .ini file.
        argv: Options, as on the command line.
        files: Further .ini files; they win over the environment's, and options win over them.
        family: Family of a Python environment (`families.py`). If empty, it is the family that the
            files name; otherwise `vec.make` finds it out and updates the configuration.
        allow_code: True to allow all code that files name. Code that ``name``, ``argv`` and
            ``keywords`` name is always allowed: see ``puffer_mlx.config.trust``.
        training: False to check only the keys that evaluations need.
        keywords: Values from a program by ``section.key``; they win over everything.
        factory: Constructor of the Python environment; None to import it by its name.
        find_family: Function that makes the environment of a configuration and returns its family.
            It is called if no file names the family. None leaves this to `vec.make`.

    Raises:
        UserError: All problems in one message.
    """
    if not name or name.startswith("-"):
        message = f"the first argument must be an environment ({COMMAND_LINE})"
        raise UserError(message, env_hint())
    typed = typed_options(argv)
    settings = [setting_of_program(key, value) for key, value in (keywords or {}).items()]
    typed_texts = typed_values(typed) | {
        setting.name: unquoted(setting.text) for setting in settings
    }
    request = Request(
        name,
        typed_texts,
        tuple(map(Path, files)),
        training=training,
        allow_code=allow_code or "--allow-code" in typed_texts,
        factory=factory,
    )
    scanned = scan_files(request, family)
    keys = _key_options(scanned, typed)
    arguments, _ = parse_options(build_parser(), typed, keys)
    if not scanned.environment.python:
        _refuse_unknown_keys(settings, keys.values())
    arguments = [*arguments, *settings]
    return resolve(scanned, arguments, find_family)


def _refuse_unknown_keys(settings: Iterable[Setting], names: Collection[str]) -> None:
    """Raise a UserError for unknown keys that a program set, with the closest key as a hint."""
    for setting in settings:
        if setting.name not in names:
            similar = closest(setting.name, [*names])
            hint = f"did you mean {similar}?" if similar else every_key()
            raise UserError(f"there is no setting {setting} ({ARGUMENT})", hint)


def load_saved(path: Path, allow_code: Allowed = False) -> Config:
    """Load and return the configuration saved with a run, perhaps a stranger's, to evaluate it.

    Args:
        path: The configuration file.
        allow_code: True to allow all code that the file names, or a set of allowed names.

    Raises:
        UserError: All problems in one message.
    """
    scanned = scan_files(Request("", {}, run=path, training=False, allow_code=allow_code is True))
    if not isinstance(allow_code, bool):
        scanned = scanned._replace(typed_code=allow_code)
    return fit_and_validate(apply_settings(scanned), training=False)


def parse_command_line(
    argv: Sequence[str],
    add_options: AddOptions | None = None,
    files: Sequence[str | Path] = (),
    family: str = "",
    run: Path | None = None,
    used: Sequence[str] | None = None,
    training: bool = True,
    find_family: FindFamily | None = None,
) -> tuple[Config, argparse.Namespace]:
    """Parse a command line `ENV [options]` into a configuration; `--help` prints and exits.

    Args:
        argv: Command line without the command's name.
        add_options: Function that adds the command's other options to the parser.
        files: Further .ini files.
        family: Family of a Python environment; see `load`.
        run: A saved run's configuration file, used instead of ENV's files.
        used: Sections and keys that have an effect in the command, besides [env]; None for all.
            Typed keys without an effect are listed in a note.
        training: False to check only the keys that evaluations need.
        find_family: Function that finds out the family; see `load`.

    Returns:
        The checked configuration, and the values of the command's other options.

    Raises:
        UserError: All problems in one message.
    """
    name, words = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("", argv)
    typed = typed_options(words)
    typed_texts = typed_values(typed)
    shows_help = asks_for_help(typed_texts)
    if not name and not shows_help:
        message = f"the first argument must be an environment ({COMMAND_LINE})"
        raise UserError(message, env_hint())
    allow_code = "--allow-code" in typed_texts
    request = Request(
        name, typed_texts, tuple(map(Path, files)), run, training, allow_code=allow_code
    )
    scanned = scan_files(request, family)
    parser = build_parser(add_options, used, scanned.file_settings.settings)
    if shows_help:
        parser.values = {**_constructor_defaults(name), **parser.values}
    arguments, options = parse_options(
        parser, typed, _key_options(scanned, typed, parser.keys), used
    )
    config = resolve(scanned, arguments, find_family)
    vars(options).pop("allow_code")  # stored in the configuration
    unused = [setting.name for setting in arguments if not is_used(used, setting.name)]
    if unused and used is not None:
        config.notes.append(f"unused here: {', '.join(unused)} (--help all shows the used keys)")
    return config, options


def _constructor_defaults(name: str) -> dict[str, str]:
    """Return the defaults of an environment class's arguments by [env] key, to show them in help.

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
    scanned: ScannedFiles, typed: Iterable[TypedOption], further: Iterable[str] = ()
) -> dict[str, str]:
    """Return a dict from each option that sets a key, for one environment, to the key's name.

    Args:
        scanned: Environment with its files.
        typed: Options of the command line; Python environments take any key of [env].
        further: Names of keys that a command adds.
    """
    env_keys = [f"env.{key}" for key in scanned.file_settings.release.env]
    if scanned.environment.python:
        words = (each.option.removeprefix("--env.") for each in typed)
        env_keys += (f"env.{key.replace('-', '_')}" for key in words if not key.startswith("-"))
    return options_that_set_keys(scanned.file_settings.settings, [*env_keys, *further])
