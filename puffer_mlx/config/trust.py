"""Trust in code that a configuration names: code named only by a file is refused.

A configuration may name a folder of C sources (``env.source``) or Python objects (``env_name``,
``NAMING``'s keys, a text for a Python environment's function), and another person's checkpoint
contains a configuration. Code runs if

- it comes with puffer_mlx, or is registered by Gymnasium or an installed package (``gym:ID``),
- the user named it: on this command line, or as an argument in Python,
- the user named it before on this machine: a file with its hash remembers it,
- or ``--allow-code`` was given, which is not remembered.

docs/decisions/0013-code-in-files.md explains why.
"""

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.config.schema import COMMAND_LINE, DECLARED, Config
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import publish
from puffer_mlx.system.import_string import folder_of
from puffer_mlx.system.private_folders import make, untrusted_reason

Allowed = bool | frozenset[str]  # everything, nothing, or what is named so
OBJECT = re.compile(r"[\w./~-]+:[A-Za-z_][\w./-]*")  # a text that may name an object
GYM, ZOO = "gym:", "pettingzoo:"
NAMING = [name for name, declared in DECLARED.items() if declared.custom]


class Code(NamedTuple):
    """Code that would run, or a folder that would be written to."""

    kind: str  # "folder", "object" or "logs"
    name: str  # as it is written
    path: str  # resolved: the folder, or where the object's module or top package is

    @property
    def digest(self) -> str:
        """Hash that identifies the code."""
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()


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

    Code that the user named is remembered, unless everything is allowed.

    Args:
        config: Configuration from files, a command line, or a program.
        sections: Sections of keys to check: ``base`` and ``env``, ``torch``, or ``train``.

    Raises:
        UserError: A file names code that wasn't allowed; the message names the code.
    """
    if config.allow_code:
        return
    for key, name in code_names(config).items():
        code = _resolved(key, name) if key.partition(".")[0] in sections else None
        if code is None:
            continue
        origin = config.named_by.get(name)
        if origin is None:
            _remember(code)
        elif not _remembered(code):
            raise _refusal(key, code, origin)


def permit_log_dir(config: Config, new: bool) -> None:
    """Refuse to resume a log in a folder that only a checkpoint's configuration names.

    Args:
        config: Configuration of the run.
        new: True for a new run: its folder is remembered.

    Raises:
        UserError: The folder is outside the working directory, and the user never sent logs to
            it on this machine.
    """
    folder = Path(config.base.log_dir).resolve()
    code = Code("logs", "", str(folder))
    origin = config.origins.get("base.log_dir", "")
    if folder.is_relative_to(Path.cwd()):
        return
    if new or ":" not in origin:
        _remember(code)
    elif not _remembered(code):
        raise UserError(
            f"{origin} sends the log to {folder}, where no run of yours on this machine did",
            "say where it is to go: --log-dir logs, for example",
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
    """Mark code that the user didn't type as named by a file.

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


def known(config: Config) -> Allowed:
    """Return what the user allowed: everything, or the names of the code they named."""
    return config.allow_code or frozenset(code_names(config).values()) - config.named_by.keys()


def _refusal(key: str, code: Code, origin: str) -> UserError:
    if code.kind == "folder":
        what = f"C sources that would be compiled and run: {code.path}"
    else:
        what = f"Python code that would be imported: {code.name}, of {code.path}"
    if why := _forgetful(memory_folder()):
        what += f"\n  what you name yourself isn't remembered: {why}"
    argument = as_argument(code.name) if key == "base.env_name" else ""
    return UserError(
        f"{origin} names {what}",
        "it may do anything that you may; if you trust it: --allow-code (in Python:"
        f" allow_code=True{f', or {argument}' if argument else ''})",
    )


def as_argument(name: str) -> str:
    """Return the argument that passes ``module:Class`` in Python, for hints; "" for other names."""
    kind, _, path = name.rpartition(":")
    return "" if not kind or name.startswith((GYM, ZOO)) else f"env={path.rpartition('.')[2]}"


# ---- what a name means ---------------------------------------------------------------------------


def _resolved(key: str, name: str) -> Code | None:
    """Return the code that a name means, or None for missing names and Gymnasium's."""
    if key == "env.source":
        folder = Path(name).resolve()
        return Code("folder", "", str(folder)) if folder.is_dir() else None
    bare = name.removeprefix(GYM) if key == "base.env_name" else name
    folder = folder_of(name)
    path = _module_path(bare.rpartition(":")[0], folder)
    if key == "base.env_name" and name.startswith(ZOO):  # a module's parallel_env, or an ID
        path = _module_path(name.removeprefix(ZOO), folder) or path
    return Code("object", name, path) if path else None


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


# ---- memory --------------------------------------------------------------------------------------


def memory_folder() -> Path:
    """Return the folder with the hashes of the code that the user named.

    ``$PUFFER_MLX_DATA/named``, else in the user's data folder: ``~/Library/Application Support`` on
    macOS, ``$XDG_DATA_HOME`` or ``~/.local/share`` elsewhere. It may not exist yet.
    """
    if chosen := os.environ.get("PUFFER_MLX_DATA"):
        return Path(chosen).expanduser() / "named"
    home = Path(os.path.expanduser("~"))
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "puffer_mlx" / "named"
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else home / ".local" / "share") / "puffer_mlx" / "named"


def _remember(code: Code) -> None:
    """Save a hash. If the disk can't be written, the user will be asked again."""
    folder = memory_folder()
    if _remembered(code) or _forgetful(folder):  # no home, say: never the working directory
        return
    try:
        make(folder)
        with publish(folder / code.digest) as temporary:
            temporary.write_text(json.dumps(code._asdict(), indent=1) + "\n", encoding="utf-8")
    except (OSError, UserError):
        pass


def _remembered(code: Code) -> bool:
    """Return True if this user saved the hash in a folder that no other user can write to."""
    folder = memory_folder()
    try:
        return (folder / code.digest).is_file() and not _forgetful(folder)
    except OSError:
        return False


def _forgetful(folder: Path) -> str:
    """Return the reason why hashes can't be saved, or ""."""
    return untrusted_reason(folder) if folder.is_absolute() else f"{folder} isn't an absolute path"
