"""Trust in code that a configuration names: code named only by a file is refused.

A configuration may name a folder of C sources (``env.source``) or Python objects (``env_name``,
``NAMING``'s keys, a text for a Python environment's function), and another person's checkpoint
contains a configuration. Code runs if

- it comes with puffer_mlx, or is registered by Gymnasium or an installed package (``gym:ID``),
- the user named it: on this command line, or as an argument in Python,
- or the user gave ``--allow-code`` (in Python ``allow_code=True``).

Nothing is saved: a later command must name the code, or allow it, again.
docs/decisions/0013-code-in-files.md explains why.
"""

import importlib.machinery
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.config.option_names import how_to_set
from puffer_mlx.config.schema import COMMAND_LINE, DECLARED, Config
from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.system.import_string import folder_of

Allowed = bool | frozenset[str]  # True: all code; False: none; a set: code with these names
OBJECT = re.compile(r"[\w./~-]+:[A-Za-z_][\w./-]*")  # a text that may name an object
GYM, ENVPOOL, ZOO = "gym:", "envpool:", "pettingzoo:"
NAMING = [name for name, declared in DECLARED.items() if declared.custom]


class Code(NamedTuple):
    """Code that would run.

    Args:
        name: The name of a Python object as written; empty for a folder of C sources.
        path: The folder, or the file of the object's module or top package.
    """

    name: str
    path: str


def code_names(config: Config) -> dict[str, str]:
    """Return the keys that name code from outside puffer_mlx, with the names."""
    names = {key: config.value(key) for key in NAMING if ":" in config.value(key)}
    if config.python:
        names["base.env_name"] = config.env_name
        for key, value in config.env.items():  # gymnasium.make(id=...), say, imports modules
            if isinstance(value, str) and OBJECT.fullmatch(value):
                names[f"env.{key}"] = value
    elif config.source:
        names["env.source"] = config.source
    return names


def permit(config: Config, *sections: str) -> None:
    """Refuse code that only a file names. Call it before code from a configuration runs.

    Args:
        config: Configuration from files, a command line, or a program.
        sections: Sections of keys to check: ``base`` and ``env``, ``torch``, or ``train``.

    Raises:
        UserError: A file names code that wasn't allowed; the message names the code.
    """
    if config.allow_code:
        return
    for key, name in code_names(config).items():
        origin = config.named_by.get(name)
        if origin is None or key.partition(".")[0] not in sections:
            continue
        if code := _resolved(key, name):
            raise _refusal(key, name, code, origin)


def permit_log_dir(config: Config) -> None:
    """Refuse a log folder that only the checkpoint names, if it is outside the working directory.

    Args:
        config: Configuration of the resumed run.

    Raises:
        UserError: The user didn't name the folder.
    """
    folder = Path(config.base.log_dir).resolve()
    origin = config.origins.get("base.log_dir", "")
    typed = ":" not in origin
    if not (typed or config.allow_code or folder.is_relative_to(Path.cwd())):
        raise UserError(
            f"{origin} sends the log to {folder}, outside the working directory",
            f"if it is yours, name it: {how_to_set('base.log_dir', str(folder))};"
            f" else {how_to_set('base.log_dir', 'logs')}, for example",
        )


def permit_profile(config: Config) -> None:
    """Refuse to write a timeline to a file that the user didn't type.

    Raises:
        UserError: The file isn't from the command line.
    """
    origin = config.origins.get("base.profile")
    if isinstance(config.base.profile, str) and origin != COMMAND_LINE:
        raise UserError(
            f"{origin} would have the file {config.base.profile} written",
            f"say so on the command line: --profile {config.base.profile}",
        )


def note_origin(config: Config, typed: Config, origin: str) -> None:
    """Record in ``named_by`` all code that this command line doesn't name.

    Args:
        config: Configuration of stored and typed words; is changed.
        typed: Configuration of the typed words alone.
        origin: Place of the stored words, for messages.
    """
    config.allow_code = typed.allow_code
    words = set(code_names(typed).values()) - typed.named_by.keys()
    for name in set(code_names(config).values()) - words:
        config.named_by.setdefault(name, origin)
    if config.origins.get("base.profile") != typed.origins.get("base.profile"):
        config.origins["base.profile"] = origin


def allowed_names(config: Config) -> Allowed:
    """Return True if the user allowed all code, else the names of the code that they named."""
    return config.allow_code or frozenset(code_names(config).values()) - config.named_by.keys()


def _refusal(key: str, name: str, code: Code, origin: str) -> UserError:
    what = f"C sources that would be compiled and run: {code.path}"
    if code.name:
        what = f"Python code that would be imported: {code.name}, of {code.path}"
    if program.is_command():
        ways = "--allow-code" + (f", or {how_to_set(key, name)}" if key in NAMING else "")
    else:
        argument = as_argument(name) if key == "base.env_name" else ""
        argument = how_to_set(key, name) if key in NAMING else argument
        ways = "allow_code=True in Policy.load or Trainer.load"
        ways += f", or {argument}" if argument else ""
    hint = f"it may do anything that you may; if you trust it: {ways}"
    return UserError(f"{origin} names {what}", hint)


def as_argument(name: str) -> str:
    """Return the argument that passes an environment in Python, for hints; "" for one in C."""
    kind, _, path = name.rpartition(":")
    if name.startswith((GYM, ENVPOOL, ZOO)):
        return f"env={name!r}"
    return f"env={path.rpartition('.')[2]}" if kind else ""


# ---- what a name means ---------------------------------------------------------------------------


def _resolved(key: str, name: str) -> Code | None:
    """Return the code that a name means, or None for missing names and Gymnasium's."""
    if key == "env.source":
        folder = Path(name).resolve()
        return Code("", str(folder)) if folder.is_dir() else None
    if key == "base.env_name" and name.startswith(ENVPOOL):  # an ID, never a module
        return None
    bare = name.removeprefix(GYM) if key == "base.env_name" else name
    folder = folder_of(name)
    path = _module_path(bare.rpartition(":")[0], folder)
    if key == "base.env_name" and name.startswith(ZOO):  # a module's parallel_env, or an ID
        path = _module_path(name.removeprefix(ZOO), folder) or path
    return Code(name, path) if path else None


def _module_path(module: str, folder: Path) -> str:
    """Return the path that ``import_string.load_object`` would import a module from, or "".

    Nothing is imported: of a dotted name only the top package is looked for.
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
