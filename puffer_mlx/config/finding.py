"""The environment that a word names, and its `.ini` files.

breakout              an environment that comes with puffer_mlx, else one that has a file in
                      ./configs
breakout-a            another file about it, breakout-a.ini
gym:CartPole-v1       one of Gymnasium's
envpool:CartPole-v1   one of EnvPool's, with the files about gym:CartPole-v1
module:factory        Python: also path/to/file.py:factory
path/to/ocean/NAME    a folder in PufferLib's form, with its config/NAME.ini if it has one, or the
                      only .ini file in it, whatever its name
path/to/file.ini      the environment of that file: its [base] env_name is one of the above, but
                      no folder

Nothing in the working directory changes the meaning of a name that comes with puffer_mlx: only the
package's files count for it. Sources in the working directory need a path, ``./NAME``.

A file is about the environments that its [base] env_name names, else about the one with the file's
name. An environment in Python begins with the files of its family (``families.py``); then come a
file about several environments, with a pattern like ``gym:ALE/*`` as [base] env_name, and its own.

In PufferLib's repository, environments are REPO/ocean/NAME and their files below REPO/config. If
one is named, the other is found: for 5.0 REPO/config/NAME.ini, for 4.0 any file whose [base]
env_name has the name.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.config.compatibility import closest
from puffer_mlx.config.dialects import (
    DIALECTS,
    folder_version,
    listed_names,
    main_source,
)
from puffer_mlx.config.families import ASSUMED, AUTO, FAMILIES, FILES
from puffer_mlx.config.ini_files import file_texts
from puffer_mlx.config.parts import algorithms, facts
from puffer_mlx.config.schema import DECLARED, says_memory
from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.system.files import shipped

FAMILY, NETWORK = "base.family", "torch.network"
GYM, ENVPOOL = "gym:", "envpool:"  # beginnings of names
PYTHON = "python.ini"  # what all Python environments begin with; then their family's files
_OF_ALGORITHMS = [file for name in algorithms() if (file := facts(name).layer)]
LAYERS = PYTHON, *FILES, *_OF_ALGORITHMS  # shared files: they belong to no single environment
OCEAN = "ocean"  # PufferLib's folder of environments
CONFIG = "config"  # PufferLib's folder of files
CONFIGS = CONFIG, "configs"  # PufferLib's and ours
VERSION = re.compile(r"-v\d+$")  # at the end of Gymnasium's ids

# ---- existing files ------------------------------------------------------------------------------


def config_folders() -> list[Path]:
    """Return the folders searched for environments: the package's, then `./configs`.

    They are the same folder in a checkout.
    """
    folders = dict.fromkeys((shipped("configs"), Path.cwd() / "configs"))
    return [folder for folder in folders if folder.is_dir()]


def layer(name: str) -> list[Path]:
    """Return a list with the package's file of that name, or an empty list.

    `./configs` isn't searched: its default.ini may belong to another program.
    """
    path = shipped("configs") / name
    return [path] if path.is_file() else []


def all_files() -> list[Path]:
    """Return all .ini files in these folders and below, the package's first."""
    return [path for folder in config_folders() for path in sorted(folder.rglob("*.ini"))]


def plain_path(path: Path) -> str:
    """Return a file's path as messages show it: ``configs/...`` for files of the package."""
    if path.is_relative_to(shipped("configs")):
        return (Path("configs") / path.relative_to(shipped("configs"))).as_posix()
    return str(path)


def env_names(path: Path) -> list[str]:
    """Return the environments that a file is about: those of its env_name, else its own name."""
    try:
        return listed_names(path) or [path.stem]
    except OSError:  # reading its settings reports why
        return [path.stem]


def variants() -> dict[str, Path]:
    """Return further files about an environment, named like ``breakout-a``, by these names."""
    paths: dict[str, Path] = {}
    for path in all_files():
        if path.stem not in paths and _is_variant(path):
            paths[path.stem] = path
    return paths


def _is_variant(path: Path) -> bool:
    """Return True for a file NAME-x.ini whose env_name is NAME."""
    name, dash, _ = path.stem.partition("-")
    return bool(dash) and env_names(path) == [name]


def known_envs() -> list[str]:
    """Return all environments that have a file."""
    files = (path for path in all_files() if path.name not in ("default.ini", *LAYERS))
    return sorted({name for path in files for name in env_names(path)})


def known_words() -> list[str]:
    """Return the names of all environments and variants that have a file."""
    return sorted({*known_envs(), *variants()})


def find_config(name: str) -> Path:
    """Return the file of an environment, or of a path that ends in `.ini`.

    As in PufferLib, it is a file whose [base] env_name lists the name; NAME.ini comes first.

    Raises:
        UserError: no file is about the environment.
    """
    if name.endswith(".ini"):
        if Path(name).is_file():
            return Path(name)
        raise UserError(f"there is no file {name}", "name an .ini file that exists")
    for folder in config_folders():
        for path in sorted(folder.rglob("*.ini"), key=lambda path: (path.stem != name, path)):
            if name in env_names(path) and path.name not in LAYERS:
                return path
    message = f"unknown environment {name!r}"
    if paths := local_paths(name):
        raise UserError(message, f"to use the folder of that name, type its path: {paths[0]}")
    near = _near(name)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    if name == "latest":
        hint = "an environment comes before it: ENV latest; "
    elif name.endswith(".py"):
        hint = f"name what is in it: {name}:CLASS; "
    elif Path(f"{name}.py").is_file():
        hint = f"name what is in {name}.py: {name}:CLASS; "
    raise UserError(message, hint + words_hint())


def _near(name: str) -> list[str]:
    """Return the environments that an unknown name may mean."""
    meant = gymnasium_id(name)
    if meant and VERSION.search(name):
        return [meant]
    words = [word for word in known_words() if not word.startswith("gym:")]
    return list(filter(None, [closest(name, words), meant]))


def gymnasium_id(name: str) -> str:
    """Return the environment ``gym:ID`` that a name without ``gym:`` means, or "".

    Case and version may differ; a missing version means the newest one.
    """
    version = VERSION.search(name)
    try:
        from gymnasium.envs.registration import registry
    except ImportError:
        return f"gym:{name}" if version else ""
    if name in registry or name.startswith(("ALE/", "MiniGrid-")):  # these register themselves late
        return f"gym:{name}"
    base = VERSION.sub("", name).lower()
    named = [spec for spec in registry.values() if VERSION.sub("", spec.id).lower() == base]
    if named:
        return f"gym:{max(named, key=lambda spec: spec.version or 0).id}"
    if not version:
        return ""
    near = get_close_matches(name, list(registry), n=1, cutoff=0.8)
    if not near and version[0] == "-v5":  # Atari's version
        near = [f"ALE/{name}"]
    return f"gym:{near[0]}" if near else ""


def refuse_without_version(word: str) -> None:
    """Refuse ``gym:NAME`` for ``gym:NAME-v1``: settings, runs and checkpoints have the full name.

    Raises:
        UserError: the version is missing, and Gymnasium knows one.
    """
    family, _, name = word.partition(":")
    if family != "gym" or ":" in name or VERSION.search(name):
        return
    meant = gymnasium_id(name)
    if meant not in ("", word):
        raise UserError(f"{word} is without its version", f"{meant}, the newest one")


def local_paths(name: str) -> list[str]:
    """Return the environments' folders in the working directory that have a name, as typed."""
    folders = [Path(name), Path(OCEAN) / name]
    return [f"./{folder.as_posix()}" for folder in folders if main_source(folder)]


def words_hint() -> str:
    """Return what may be typed as an environment, for hints."""
    return f"`{program.COMMAND} list` shows all; or gym:ID, module:Class, or a path such as ./NAME"


def last_text(key: str, files: Iterable[Path]) -> str:
    """Return a key's text in the last file that contains it; empty if none does."""
    texts = [file_texts(path).get(key, "") for path in files]
    return next((text for text in reversed(texts) if text), "")


def is_complete(path: Path) -> bool:
    """Return True for a run's saved configuration, which sets every key.

    A file counts as one if it sets at least half of the keys: older versions had fewer keys.
    """
    return 2 * len(DECLARED.keys() & file_texts(path).keys()) >= len(DECLARED)


# ---- the environment, and the files that are about it --------------------------------------------


class NamedEnvironment(NamedTuple):
    """An environment and the files that configure it, the later ones winning."""

    env_name: str
    source: str  # the folder of its C sources; empty if it comes with puffer_mlx
    files: list[Path]
    family: str = ""  # of an environment in Python; empty if nothing says which
    layered: bool = False  # whether the files of its family are among them
    partly: frozenset[Path] = frozenset()  # files that only count for the keys in ``PARTS``

    @property
    def python(self) -> bool:
        """True for an environment in Python: ``gym:ID`` or ``module:factory``."""
        return ":" in self.env_name


class FamilyChoice(NamedTuple):
    """The settings that choose the files of an environment in Python.

    Args:
        family: Family of the environment's spaces; empty before they are known.
        typed: Typed ``base.family``; may be empty. It wins over the environment's files, which
            win over the spaces. ``auto`` means the spaces.
        network: Typed ``torch.network``; empty to use the files' value.
        complete: True if a run's saved configuration follows. It sets every key, so the family's
            files are left out.
    """

    family: str = ""
    typed: str = ""
    network: str = ""
    complete: bool = False


NOTHING = FamilyChoice()


def find(word: str, choice: FamilyChoice = NOTHING) -> NamedEnvironment:
    """Return the environment that a word names, with its files.

    Args:
        word: a word of the table above.
        choice: the choice of files for an environment in Python.

    Raises:
        UserError: there is no such environment, folder or file.
    """
    if word == "default":
        return NamedEnvironment(word, "", _defaults())
    if word.endswith(".ini"):
        path = find_config(word)
        return _beside(path) or resolve_file(path, choice)
    if ":" in word:
        return _python(word, _files_about(word), choice)
    if "/" in word or word in (".", ".."):
        return _folder(word)
    for path in all_files() if "-" in word else []:
        if path.stem == word and _is_variant(path):
            return resolve_file(path)
    return NamedEnvironment(word, "", [*_defaults(), find_config(word)])


def shadow_note(word: str, named: NamedEnvironment) -> str:
    """Return a note that a shipped environment is used, not one of ./ with that name; may be empty.

    Args:
        word: the first word of a command line.
        named: the environment that it names.
    """
    ours = shipped("configs"), shipped("envs")
    if named.source or not named.files or not named.files[-1].is_relative_to(ours[0]):
        return ""
    file = f"./configs/{word}.ini"
    for path in [*local_paths(word), *[file] * Path(file).is_file()]:
        if not any(map(Path(path).resolve().is_relative_to, ours)):
            return f"{word} is puffer_mlx's own; to use {path}, type that path"
    return ""


def resolve_file(path: Path, choice: FamilyChoice = NOTHING) -> NamedEnvironment:
    """Return the environment that a user's file or a saved run's configuration is about.

    Raises:
        UserError: the file is about several environments.
    """
    name = env_names(path)[0]
    if "*" in name:
        raise UserError(f"{path} is for all of {name}", f"name one: {name.replace('*', 'NAME')}")
    if ":" in name:
        return _python(name, [path], choice._replace(complete=choice.complete or is_complete(path)))
    return NamedEnvironment(name, "", [*_defaults(), path])


def _python(name: str, own: list[Path], choice: FamilyChoice) -> NamedEnvironment:
    """Return an environment in Python with the files of its family, then its own."""
    word = choice.typed or last_text(FAMILY, own)
    family = choice.family if word in ("", AUTO) else word
    if choice.complete:  # keys that a family's files got since weren't the run's
        return NamedEnvironment(name, "", [*_defaults(), *own], family)
    chosen = FAMILIES.get(family) or FAMILIES[ASSUMED]  # a wrong word is refused when keys are read
    memory = says_memory(choice.network or last_text(NETWORK, own))
    layers = [path for file in (PYTHON, *chosen.files_for(memory)) for path in layer(file)]
    partly = frozenset(path for path in layers if path.name in chosen.partly)
    return NamedEnvironment(name, "", [*_defaults(), *layers, *own], family, True, partly)


def _files_about(word: str) -> list[Path]:
    """Return the files of an environment in Python: one about several environments, then its own.

    The package's files come first: those about ``gym:ID`` are in its folder ``configs/gym``. Files
    of ./configs are read only if the package has no file for the environment alone. The files about
    ``gym:ID`` also count for ``envpool:ID``.
    """
    kind, _, name = word.partition(":")
    twin = f"{GYM}{name}" if f"{kind}:" == ENVPOOL else word
    kind = twin.partition(":")[0]
    files = sorted((shipped("configs") / kind).rglob("*.ini")) if kind.isidentifier() else []
    if not any(twin in env_names(path) for path in files):
        others = [folder for folder in config_folders() if folder != shipped("configs")]
        files += [path for folder in others for path in sorted(folder.rglob("*.ini"))]
    own = [path for path in files if {word, twin} & set(env_names(path))]
    several = [path for path in files if _is_one_of(twin, path)]
    return [*several[:1], *own[:1]]


def _beside(path: Path) -> NamedEnvironment | None:
    """Return the environment of a file in a ``config`` folder, from the ``ocean`` folder beside it.

    The file may name the environment, but not by a path, which could lead to any sources.
    """
    names = [name for name in (*env_names(path), path.stem) if re.fullmatch(r"\w[\w.+-]*", name)]
    for configs in (above for above in path.resolve().parents if above.name == CONFIG):
        for folder in (configs.parent / OCEAN / name for name in names):
            if main_source(folder):
                names_itself = DIALECTS[folder_version(folder)].names_itself
                if names_itself or path.resolve() == configs / f"{folder.name}.ini":
                    return _configured(folder, configs, path)
    return None


def _configured(folder: Path, configs: Path, path: Path) -> NamedEnvironment:
    """Return an environment's folder with a file of a ``config`` folder and its default.ini."""
    theirs = [file for file in [configs / "default.ini"] if file.is_file()]
    return NamedEnvironment(folder.name, str(folder), [*_defaults(), *theirs, path])


def _folder(word: str) -> NamedEnvironment:
    """Return an environment's folder with its file: in it, or in a ``config`` folder above it."""
    if VERSION.search(word) and not Path(word).exists():
        raise UserError(
            f"there is no folder {word}", f"did you mean {gymnasium_id(word)}? {words_hint()}"
        )
    names_itself = DIALECTS[folder_version(word)].names_itself
    folder = Path(word).resolve()

    def about_it(paths: Iterable[Path]) -> list[Path]:
        if names_itself:
            return [path for path in paths if folder.name in env_names(path)]
        return [path for path in paths if path.name == f"{folder.name}.ini"]

    inside = sorted(folder.glob("*.ini"))
    if own := about_it(inside):
        return NamedEnvironment(folder.name, str(folder), [*_defaults(), own[0]])
    for configs in (above / name for above in folder.parents for name in CONFIGS):
        if configs.is_dir():
            below = configs.rglob("*.ini") if names_itself else configs.glob("*.ini")
            if files := about_it(sorted(below)):
                return _configured(folder, configs, files[0])
    if len(inside) > 1:
        names = ", ".join(path.name for path in inside)
        raise UserError(
            f"none of the files in {word} is about {folder.name}: {names}",
            f"call one {folder.name}.ini"
            + (f", or give it [base] env_name = {folder.name}" if names_itself else ""),
        )
    return NamedEnvironment(folder.name, str(folder), [*_defaults(), *inside])


def _is_one_of(name: str, path: Path) -> bool:
    """Return True if a file is about several environments and this is one of them."""
    return any("*" in several and fnmatchcase(name, several) for several in env_names(path))


def _defaults() -> list[Path]:
    """Return default.ini in a list."""
    return layer("default.ini")
