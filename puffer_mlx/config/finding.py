"""Find an environment by name or path, and the `.ini` files that configure it.

breakout              an environment that comes with puffer_mlx, or one with a file in ./configs
breakout-a            the same environment with other settings, breakout-a.ini
gym:CartPole-v1       a Gymnasium environment
envpool:CartPole-v1   one of EnvPool's, with the files about gym:CartPole-v1
module:factory        a Python environment; also path/to/file.py:factory
path/to/ocean/NAME    a folder with C sources in PufferLib's layout, and its config/NAME.ini if it
                      exists, or the only .ini file in the folder
path/to/file.ini      the environment in the file's [base] env_name, which may not be a folder

Files in the working directory never change the meaning of a name that comes with puffer_mlx: only
the package's files are read for it. Sources in the working directory need a path, ``./NAME``.

A file configures the environments that its [base] env_name lists. Without env_name it configures
the environment with the file's name. For a Python environment these files are read, later ones win:
those of its family (``families.py``), a file about several environments (its env_name is a pattern
like ``gym:ALE/*``), and the environment's file.

In PufferLib's repository, environments are in REPO/ocean/NAME and their files below REPO/config.
From the folder the file is found, and from the file the folder. The file is REPO/config/NAME.ini
for 5.0, and for 4.0 any file whose [base] env_name contains the name.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.config.compatibility import closest
from puffer_mlx.config.components import algorithms, facts
from puffer_mlx.config.families import AUTO, DEFAULT_FAMILY, FAMILIES, FAMILY_FILES
from puffer_mlx.config.ini_files import file_texts
from puffer_mlx.config.releases import (
    RELEASES,
    folder_release,
    listed_names,
    main_source,
)
from puffer_mlx.config.schema import DECLARED, may_be_recurrent
from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.system.files import shipped_folder

FAMILY = "base.family"
NETWORK = "torch.network"
GYM_PREFIX = "gym:"
ENVPOOL_PREFIX = "envpool:"
ZOO_PREFIX = "pettingzoo:"
PYTHON_FILE = "python.ini"  # settings of all Python environments, read before their family's
_ALGORITHM_FILES = [file for name in algorithms() if (file := facts(name).settings_file)]
SHARED_FILES = PYTHON_FILE, *FAMILY_FILES, *_ALGORITHM_FILES  # files of no single environment
OCEAN = "ocean"  # PufferLib's folder of environments
UPSTREAM_CONFIG = "config"  # PufferLib's folder of .ini files
CONFIG_FOLDERS = UPSTREAM_CONFIG, "configs"  # PufferLib's and ours
VERSION = re.compile(r"-v\d+$")  # at the end of Gymnasium's ids

# ---- existing files ------------------------------------------------------------------------------


def config_folders() -> list[Path]:
    """Return the folders to search for .ini files: the one in the package, then `./configs`.

    In a checkout they are the same folder.
    """
    folders = dict.fromkeys((shipped_folder("configs"), Path.cwd() / "configs"))
    return [folder for folder in folders if folder.is_dir()]


def shipped_file(name: str) -> list[Path]:
    """Return a list with the path of an .ini file shipped in the package; empty if there is none.

    `./configs` isn't searched: its default.ini may belong to another program.
    """
    path = shipped_folder("configs") / name
    return [path] if path.is_file() else []


def all_files() -> list[Path]:
    """Return all .ini files in the configuration folders and below, the package's first."""
    return [path for folder in config_folders() for path in sorted(folder.rglob("*.ini"))]


def plain_path(path: Path) -> str:
    """Return an .ini file's path as text for messages: ``configs/...`` for a shipped file."""
    if path.is_relative_to(shipped_folder("configs")):
        return (Path("configs") / path.relative_to(shipped_folder("configs"))).as_posix()
    return str(path)


def env_names(path: Path) -> list[str]:
    """Return the names of the environments that an .ini file configures.

    They are in its env_name; without one, it is the file's name.
    """
    try:
        return listed_names(path) or [path.stem]
    except OSError:  # reading the settings reports the reason
        return [path.stem]


def variants() -> dict[str, Path]:
    """Return the variants of environments: names, such as ``breakout-a``, with their .ini files.

    A variant has other settings for the environment before the hyphen.
    """
    paths: dict[str, Path] = {}
    for path in all_files():
        if path.stem not in paths and _is_variant(path):
            paths[path.stem] = path
    return paths


def _is_variant(path: Path) -> bool:
    """Return True if an .ini file has settings for a variant of environment NAME: NAME-x.ini."""
    name, dash, _ = path.stem.partition("-")
    return bool(dash) and env_names(path) == [name]


def all_env_names() -> list[str]:
    """Return the sorted names of all environments with an .ini file, without variants."""
    files = (path for path in all_files() if path.name not in ("default.ini", *SHARED_FILES))
    return sorted({name for path in files for name in env_names(path)})


def selectable_names() -> list[str]:
    """Return the sorted names of all environments and variants that a user can select."""
    return sorted({*all_env_names(), *variants()})


def find_config(name: str) -> Path:
    """Return the .ini file of an environment; ``name`` may also be the path of an .ini file.

    As in PufferLib, it is a file whose [base] env_name lists the name; NAME.ini is tried first.

    Raises:
        UserError: If no file configures the environment.
    """
    if name.endswith(".ini"):
        if Path(name).is_file():
            return Path(name)
        raise UserError(f"there is no file {name}", "name an existing .ini file")
    for folder in config_folders():
        for path in sorted(folder.rglob("*.ini"), key=lambda path: (path.stem != name, path)):
            if name in env_names(path) and path.name not in SHARED_FILES:
                return path
    message = f"unknown environment {name!r}"
    if paths := local_paths(name):
        raise UserError(message, f"to use the folder of that name, type its path: {paths[0]}")
    similar = _similar_names(name)
    hint = f"did you mean {' or '.join(similar)}? " if similar else ""
    if name == "latest":
        hint = "put the environment before it: ENV latest; "
    elif name.endswith(".py"):
        hint = f"add the class or function: {name}:CLASS; "
    elif Path(f"{name}.py").is_file():
        hint = f"to use a class in {name}.py: {name}:CLASS; "
    raise UserError(message, hint + env_hint())


def _similar_names(name: str) -> list[str]:
    """Return existing environments with names similar to an unknown one, for a hint."""
    gym_name = gymnasium_id(name)
    if gym_name and VERSION.search(name):
        return [gym_name]
    names = [other for other in selectable_names() if not other.startswith("gym:")]
    return [similar for similar in (closest(name, names), gym_name) if similar]


def gymnasium_id(name: str) -> str:
    """Return the Gymnasium environment ``gym:ID`` for a name without ``gym:``, or "".

    Case and version may differ; without a version it is the newest one.
    """
    version = VERSION.search(name)
    try:
        from gymnasium.envs.registration import registry
    except ImportError:
        return f"gym:{name}" if version else ""
    if name in registry or name.startswith(("ALE/", "MiniGrid-")):  # registered on import
        return f"gym:{name}"
    base = VERSION.sub("", name).lower()
    versions = [spec for spec in registry.values() if VERSION.sub("", spec.id).lower() == base]
    if versions:
        return f"gym:{max(versions, key=lambda spec: spec.version or 0).id}"
    if not version:
        return ""
    similar = get_close_matches(name, list(registry), n=1, cutoff=0.8)
    if not similar and version[0] == "-v5":  # Atari's version
        similar = [f"ALE/{name}"]
    return f"gym:{similar[0]}" if similar else ""


def refuse_missing_version(env_name: str) -> None:
    """Raise a UserError if a Gymnasium environment's version is missing: ``gym:NAME``, not -v1.

    Settings, runs and checkpoints need the full name.

    Raises:
        UserError: If the version is missing and Gymnasium has a version of that name.
    """
    prefix, _, name = env_name.partition(":")
    if prefix != "gym" or ":" in name or VERSION.search(name):
        return
    full_name = gymnasium_id(name)
    if full_name not in ("", env_name):
        raise UserError(f"{env_name} has no version", f"the newest one is {full_name}")


def local_paths(name: str) -> list[str]:
    """Return paths (``./NAME``) of environment folders with this name in the working directory."""
    folders = [Path(name), Path(OCEAN) / name]
    return [f"./{folder.as_posix()}" for folder in folders if main_source(folder)]


def env_hint() -> str:
    """Return a hint that lists the possible kinds of environment names."""
    return f"`{program.COMMAND} list` shows all; or gym:ID, module:Class, or a path such as ./NAME"


def last_value(key: str, files: Iterable[Path]) -> str:
    """Return the text that the last of some .ini files sets for a key, or "" if none does."""
    texts = [file_texts(path).get(key, "") for path in files]
    return next((text for text in reversed(texts) if text), "")


def is_complete(path: Path) -> bool:
    """Return True if an .ini file is the complete configuration that was saved with a run.

    The criterion is that it sets at least half of the keys: older versions had fewer keys.
    """
    return 2 * len(DECLARED.keys() & file_texts(path).keys()) >= len(DECLARED)


# ---- an environment and its files ----------------------------------------------------------------


class ConfiguredEnvironment(NamedTuple):
    """An environment together with the .ini files that configure it, in the order of reading.

    Args:
        env_name: Name of the environment.
        source: Folder of its C sources; empty if it comes with puffer_mlx.
        files: The .ini files; later ones win.
        family: Family of a Python environment; empty if unknown.
        has_family_files: True if the family's files are in ``files``.
        partial_files: Files that are read only for the keys in ``PARTIAL_FILE_KEYS``.
    """

    env_name: str
    source: str
    files: list[Path]
    family: str = ""
    has_family_files: bool = False
    partial_files: frozenset[Path] = frozenset()

    @property
    def python(self) -> bool:
        """True if the environment is written in Python: ``gym:ID`` or ``module:factory``."""
        return ":" in self.env_name


class FamilyChoice(NamedTuple):
    """The facts that decide which family's default settings a Python environment uses.

    A family is a group of Python environments with the same default settings. A typed family wins
    over the one in the environment's files, which wins over the family of the environment's spaces.
    ``auto`` means the family of the spaces.

    Args:
        family: Family of the environment's spaces; empty before they are known.
        typed_family: Typed ``base.family``; may be empty.
        typed_network: Typed ``torch.network``; empty to use the files' value.
        has_complete_file: True if a run's saved configuration is read too. It sets every key, so
            the family's files are left out.
    """

    family: str = ""
    typed_family: str = ""
    typed_network: str = ""
    has_complete_file: bool = False


NO_CHOICE = FamilyChoice()


def find_configured_environment(
    word: str, choice: FamilyChoice = NO_CHOICE
) -> ConfiguredEnvironment:
    """Find an environment by name or path. Returns it with the .ini files that configure it.

    Args:
        word: Name or path; the module's docstring lists the kinds.
        choice: Settings that choose the family's files of a Python environment.

    Raises:
        UserError: If the environment, folder or file doesn't exist.
    """
    if word == "default":
        return ConfiguredEnvironment(word, "", _defaults())
    if word.endswith(".ini"):
        path = find_config(word)
        return _upstream_environment(path) or resolve_file(path, choice)
    if ":" in word:
        return _python_environment(word, _python_files(word), choice)
    if "/" in word or word in (".", ".."):
        return _folder_environment(word)
    for path in all_files() if "-" in word else []:
        if path.stem == word and _is_variant(path):
            return resolve_file(path)
    return ConfiguredEnvironment(word, "", [*_defaults(), find_config(word)])


def shadow_note(word: str, environment: ConfiguredEnvironment) -> str:
    """Return a note if a shipped environment is used despite one of its name in ./, or "".

    Args:
        word: Name or path of the environment, as typed.
        environment: The environment that was found for it.
    """
    shipped_folders = shipped_folder("configs"), shipped_folder("envs")
    if environment.source or not environment.files:
        return ""
    if not environment.files[-1].is_relative_to(shipped_folders[0]):
        return ""
    paths = local_paths(word)
    file = f"./configs/{word}.ini"
    if Path(file).is_file():
        paths.append(file)
    for path in paths:
        if not any(Path(path).resolve().is_relative_to(folder) for folder in shipped_folders):
            return f"using puffer_mlx's {word}; to use {path}, type that path"
    return ""


def resolve_file(path: Path, choice: FamilyChoice = NO_CHOICE) -> ConfiguredEnvironment:
    """Return the environment that a user's .ini file or a run's saved configuration names.

    Raises:
        UserError: If the file is for several environments.
    """
    name = env_names(path)[0]
    if "*" in name:
        raise UserError(f"{path} is for all of {name}", f"name one: {name.replace('*', 'NAME')}")
    if ":" in name:
        complete = choice.has_complete_file or is_complete(path)
        choice = choice._replace(has_complete_file=complete)
        return _python_environment(name, [path], choice)
    return ConfiguredEnvironment(name, "", [*_defaults(), path])


def _python_environment(
    name: str, env_files: list[Path], choice: FamilyChoice
) -> ConfiguredEnvironment:
    """Return a Python environment with the files of its family, followed by its own files."""
    explicit_family = choice.typed_family or last_value(FAMILY, env_files)
    family_name = choice.family if explicit_family in ("", AUTO) else explicit_family
    if (
        choice.has_complete_file
    ):  # The run didn't have keys that were added to a family's files later.
        return ConfiguredEnvironment(name, "", [*_defaults(), *env_files], family_name)
    # A wrong name is refused when the keys are read.
    family = FAMILIES.get(family_name) or FAMILIES[DEFAULT_FAMILY]
    recurrent = may_be_recurrent(choice.typed_network or last_value(NETWORK, env_files))
    names = PYTHON_FILE, *family.files_for(recurrent)
    shared = [path for file in names for path in shipped_file(file)]
    partial_files = frozenset(path for path in shared if path.name in family.partial_files)
    files = [*_defaults(), *shared, *env_files]
    return ConfiguredEnvironment(name, "", files, family_name, True, partial_files)


def _python_files(word: str) -> list[Path]:
    """Return a Python environment's files: one for several environments, then one for it alone.

    The package's files come first; those for ``gym:ID`` are in ``configs/gym``. Files in ./configs
    are read only if the package has no file for the environment alone. Files for ``gym:ID`` are
    also used for ``envpool:ID``.

    Args:
        word: Name of the environment: ``gym:ID``, ``envpool:ID`` or ``module:factory``.
    """
    kind, _, name = word.partition(":")
    gym_word = f"{GYM_PREFIX}{name}" if f"{kind}:" == ENVPOOL_PREFIX else word
    kind = gym_word.partition(":")[0]
    files = sorted((shipped_folder("configs") / kind).rglob("*.ini")) if kind.isidentifier() else []
    if not any(gym_word in env_names(path) for path in files):
        folders = [folder for folder in config_folders() if folder != shipped_folder("configs")]
        files += [path for folder in folders for path in sorted(folder.rglob("*.ini"))]
    env_files = [path for path in files if {word, gym_word} & set(env_names(path))]
    pattern_files = [path for path in files if _matches_pattern(gym_word, path)]
    return [*pattern_files[:1], *env_files[:1]]


def _upstream_environment(path: Path) -> ConfiguredEnvironment | None:
    """Return the environment of an .ini file in a PufferLib repository, or None elsewhere.

    The file is in a ``config`` folder, the sources in the ``ocean`` folder beside it. The file may
    name the environment, but not by a path, which could lead to any sources.
    """
    names = [name for name in (*env_names(path), path.stem) if re.fullmatch(r"\w[\w.+-]*", name)]
    for configs in path.resolve().parents:
        if configs.name != UPSTREAM_CONFIG:
            continue
        for name in names:
            folder = configs.parent / OCEAN / name
            if not main_source(folder):
                continue
            env_name_in_file = RELEASES[folder_release(folder)].env_name_in_file
            if env_name_in_file or path.resolve() == configs / f"{name}.ini":
                return _with_upstream_defaults(folder, configs, path)
    return None


def _with_upstream_defaults(folder: Path, configs: Path, path: Path) -> ConfiguredEnvironment:
    """Return an environment with its .ini files, default.ini of a ``config`` folder included.

    Args:
        folder: Folder of the environment's sources.
        configs: The ``config`` folder, whose default.ini may be missing.
        path: The .ini file.
    """
    files = _defaults()
    if (configs / "default.ini").is_file():
        files.append(configs / "default.ini")
    return ConfiguredEnvironment(folder.name, str(folder), [*files, path])


def _folder_environment(word: str) -> ConfiguredEnvironment:
    """Return the environment in a folder; its .ini file is there or in a ``config`` folder above.

    Args:
        word: Path of the folder, as typed.

    Raises:
        UserError: If it isn't an environment's folder, or the folder has several .ini files and
            none is for its environment.
    """
    if VERSION.search(word) and not Path(word).exists():
        raise UserError(
            f"there is no folder {word}", f"did you mean {gymnasium_id(word)}? {env_hint()}"
        )
    env_name_in_file = RELEASES[folder_release(word)].env_name_in_file
    folder = Path(word).resolve()

    def matching(paths: Iterable[Path]) -> list[Path]:
        if env_name_in_file:
            return [path for path in paths if folder.name in env_names(path)]
        return [path for path in paths if path.name == f"{folder.name}.ini"]

    inside = sorted(folder.glob("*.ini"))
    if files := matching(inside):
        return ConfiguredEnvironment(folder.name, str(folder), [*_defaults(), files[0]])
    for configs in (above / name for above in folder.parents for name in CONFIG_FOLDERS):
        if configs.is_dir():
            below = configs.rglob("*.ini") if env_name_in_file else configs.glob("*.ini")
            if files := matching(sorted(below)):
                return _with_upstream_defaults(folder, configs, files[0])
    if len(inside) > 1:
        names = ", ".join(path.name for path in inside)
        raise UserError(
            f"none of the files in {word} is for {folder.name}: {names}",
            f"rename one to {folder.name}.ini"
            + (f", or set [base] env_name = {folder.name} in it" if env_name_in_file else ""),
        )
    return ConfiguredEnvironment(folder.name, str(folder), [*_defaults(), *inside])


def _matches_pattern(name: str, path: Path) -> bool:
    """Return True if an environment's name matches a ``*`` pattern in an .ini file's env_name."""
    return any("*" in pattern and fnmatchcase(name, pattern) for pattern in env_names(path))


def _defaults() -> list[Path]:
    return shipped_file("default.ini")
