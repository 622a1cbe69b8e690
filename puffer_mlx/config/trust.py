"""Refuse to run code that only a file names, because it may be another person's.

A configuration may name a folder of C sources (``env.source``) or Python objects (``env_name``, the
keys in ``CODE_KEYS``, a parameter of a Python environment), and another person's checkpoint
contains a configuration. Code is run only if

- it comes with puffer_mlx, or is registered by Gymnasium or an installed package (``gym:ID``),
- the user named it, on this command line or as an argument in Python,
- or the user set ``--allow-code`` (in Python ``allow_code=True``).

The permission isn't saved: later commands must name or allow the code again.
docs/decisions/0013-code-in-files.md explains why.
"""

import importlib.machinery
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.config.finding import ENVPOOL_PREFIX, GYM_PREFIX, ZOO_PREFIX
from puffer_mlx.config.option_names import how_to_set
from puffer_mlx.config.schema import COMMAND_LINE, DECLARED, Config
from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.system.import_string import search_folder

Allowed = bool | frozenset[str]  # True: all code; False: none; a set: code with these names
OBJECT_NAME = re.compile(r"[\w./~-]+:[A-Za-z_][\w./-]*")  # a text that may name a Python object
CODE_KEYS = [name for name, declared in DECLARED.items() if declared.custom]


class CodeLocation(NamedTuple):
    """The location on disk of code that a configuration names, such as an environment's module.

    Args:
        name: The name of a Python object as written; empty for a folder of C sources.
        path: The folder, or the file of the object's module or top package.
    """

    name: str
    path: str


def code_names(config: Config) -> dict[str, str]:
    """Return the code outside puffer_mlx that a configuration names: a dict from keys to names."""
    names = {key: config.value(key) for key in CODE_KEYS if ":" in config.value(key)}
    if config.python:
        names["base.env_name"] = config.env_name
        for (
            key,
            value,
        ) in config.env.items():  # gymnasium.make(id=...), for example, imports modules
            if isinstance(value, str) and OBJECT_NAME.fullmatch(value):
                names[f"env.{key}"] = value
    elif config.source:
        names["env.source"] = config.source
    return names


def refuse_untrusted_code(config: Config, *sections: str) -> None:
    """Raise a UserError if only a file names some code. Call this before running such code.

    Args:
        config: Configuration from files, a command line, or a program.
        sections: Sections of keys to check: ``base`` and ``env``, ``torch``, or ``train``.

    Raises:
        UserError: If code isn't allowed; the message names the code.
    """
    if config.allow_code:
        return
    for key, name in code_names(config).items():
        origin = config.untrusted_code.get(name)
        if origin is None or key.partition(".")[0] not in sections:
            continue
        if code := _locate_code(key, name):
            raise _untrusted_code_error(key, name, code, origin)


def refuse_untrusted_log_dir(config: Config) -> None:
    """Raise a UserError if only a checkpoint names a log folder outside the working directory.

    Args:
        config: Configuration of the resumed run.
    """
    folder = Path(config.base.log_dir).resolve()
    origin = config.origins.get("base.log_dir", "")
    typed = ":" not in origin
    if not (typed or config.allow_code or folder.is_relative_to(Path.cwd())):
        raise UserError(
            f"{origin} would write the log to {folder}, outside the working directory",
            f"if you want that: {how_to_set('base.log_dir', str(folder))};"
            f" otherwise, for example, {how_to_set('base.log_dir', 'logs')}",
        )


def refuse_untrusted_profile(config: Config) -> None:
    """Raise a UserError if a file, not the command line, names the file for a timeline.

    A timeline is a recording of the run for profiling.
    """
    origin = config.origins.get("base.profile")
    if isinstance(config.base.profile, str) and origin != COMMAND_LINE:
        raise UserError(
            f"{origin} would write the file {config.base.profile}",
            f"if you want that: --profile {config.base.profile}",
        )


def note_origin(config: Config, typed: Config, origin: str) -> None:
    """Mark code in a configuration as untrusted unless the user typed its name.

    Args:
        config: Configuration from stored and typed words; is changed.
        typed: Configuration from the typed words alone.
        origin: Origin of the stored words, for messages.
    """
    config.allow_code = typed.allow_code
    typed_names = set(code_names(typed).values()) - typed.untrusted_code.keys()
    for name in set(code_names(config).values()) - typed_names:
        config.untrusted_code.setdefault(name, origin)
    if config.origins.get("base.profile") != typed.origins.get("base.profile"):
        config.origins["base.profile"] = origin


def allowed_names(config: Config) -> Allowed:
    """Return the names of the code that a configuration may run; True if all is allowed."""
    return (
        config.allow_code or frozenset(code_names(config).values()) - config.untrusted_code.keys()
    )


def _untrusted_code_error(key: str, name: str, code: CodeLocation, origin: str) -> UserError:
    """Return the UserError for code that only a file names, with a hint on how to allow it."""
    description = f"C sources that would be compiled and run: {code.path}"
    if code.name:
        description = f"Python code that would be imported: {code.name}, of {code.path}"
    if program.is_command():
        options = "--allow-code" + (f", or {how_to_set(key, name)}" if key in CODE_KEYS else "")
    else:
        argument = as_argument(name) if key == "base.env_name" else ""
        argument = how_to_set(key, name) if key in CODE_KEYS else argument
        options = "allow_code=True in Policy.load or Trainer.load"
        options += f", or {argument}" if argument else ""
    hint = f"it can do anything that you can; if you trust it: {options}"
    return UserError(f"{origin} names {description}", hint)


def as_argument(name: str) -> str:
    """Return the Python argument (``env=...``) that selects an environment, for hints; "" for C."""
    kind, _, path = name.rpartition(":")
    if name.startswith((GYM_PREFIX, ENVPOOL_PREFIX, ZOO_PREFIX)):
        return f"env={name!r}"
    return f"env={path.rpartition('.')[2]}" if kind else ""


# ---- locations of code ---------------------------------------------------------------------------


def _locate_code(key: str, name: str) -> CodeLocation | None:
    """Return the location on disk of the code that a key names; None if missing or Gymnasium's."""
    if key == "env.source":
        folder = Path(name).resolve()
        return CodeLocation("", str(folder)) if folder.is_dir() else None
    if key == "base.env_name" and name.startswith(ENVPOOL_PREFIX):  # an ID, never a module
        return None
    bare = name.removeprefix(GYM_PREFIX) if key == "base.env_name" else name
    folder = search_folder(name)
    path = _module_path(bare.rpartition(":")[0], folder)
    if key == "base.env_name" and name.startswith(ZOO_PREFIX):  # a module's parallel_env, or an ID
        path = _module_path(name.removeprefix(ZOO_PREFIX), folder) or path
    return CodeLocation(name, path) if path else None


def _module_path(module: str, folder: Path) -> str:
    """Return the path of the file that importing a named Python object would load, or "".

    Nothing is imported: for a dotted name only the top package is searched.
    """
    if module.endswith(".py"):
        file = folder / module
        return str(file.resolve()) if file.is_file() else ""
    top = module.partition(".")[0]
    if not top:
        return ""
    try:
        spec = importlib.util.find_spec(top)
    except (ValueError, ImportError):  # __main__ has none
        return str(getattr(sys.modules.get(top), "__file__", "") or top)
    spec = spec or importlib.machinery.PathFinder.find_spec(top, [str(folder)])
    if spec is None:
        return ""
    return spec.origin or os.pathsep.join(spec.submodule_search_locations or [])
