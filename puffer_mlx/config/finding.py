"""Which environment a word names, and which `.ini` files are about it.

breakout              an environment that has a file in ./configs or comes with puffer_mlx; in a
                      folder laid out as PufferLib's repository, the one in ./ocean
breakout-a            another file about it, breakout-a.ini in ./configs or deeper
gym:CartPole-v1       one of Gymnasium's
module:factory        Python: also path/to/file.py:factory
path/to/ocean/NAME    a folder in PufferLib's form, with its config/NAME.ini if it has one, or the
                      only .ini file in it, whatever its name
path/to/file.ini      what that file is about: its [base] env_name is one of the above, but no
                      folder

An environment in Python begins with the files of its family (``families.py``); then comes a file
about several of them, whose [base] env_name is a pattern like ``gym:ALE/*``; then its own.

In PufferLib's repository, environments are REPO/ocean/NAME and their files below REPO/config.
Whichever of the two is named, the other is found: for 5.0 REPO/config/NAME.ini, for 4.0 any file
whose [base] env_name has the name.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.config.families import ASSUMED, AUTO, FAMILIES
from puffer_mlx.config.folders import folder_version, main_source
from puffer_mlx.config.known_files import (
    PYTHON,
    all_files,
    env_names,
    find_config,
    is_whole,
    last_said,
    layer,
    variants,
)
from puffer_mlx.config.schema import says_memory
from puffer_mlx.errors import UserError

FAMILY = "base.family"
NETWORK = "torch.network"
OCEAN = "ocean"  # PufferLib's folder of environments
CONFIGS = "config", "configs"  # and of files, here and there


class NamedEnvironment(NamedTuple):
    """An environment and the files that configure it, the later ones winning."""

    env_name: str
    source: str  # the folder of its C sources; empty if it comes with puffer_mlx
    files: list[Path]
    family: str = ""  # of an environment in Python; empty if nothing says which
    layered: bool = False  # whether the files of its family are among them
    partly: frozenset[Path] = frozenset()  # files of which only what is about actions counts


class Wanted(NamedTuple):
    """What is known of an environment in Python before its files are looked for.

    Args:
        family: by its spaces; empty if they aren't known yet.
        asked: ``base.family`` as it was typed. It counts before what the environment's own files
            say of that key, and those count before the spaces; ``auto`` means the spaces.
        network: ``torch.network`` as it was typed; if it wasn't, those files may say it.
        whole: a run's own configuration follows all files. It has every key, so the family's files
            are left out.
    """

    family: str = ""
    asked: str = ""
    network: str = ""
    whole: bool = False


NOTHING = Wanted()


def resolve(word: str, wanted: Wanted = NOTHING) -> NamedEnvironment:
    """What the first word of a command line means.

    Args:
        word: one of those above.
        wanted: if it is an environment in Python.

    Raises:
        UserError: there is no such environment, folder or file.
    """
    if word == "default":
        return NamedEnvironment(word, "", _defaults())
    if word.endswith(".ini"):
        path = find_config(word)
        return _beside(path) or resolve_file(path, wanted)
    if ":" in word:
        several = [path for path in all_files() if _is_one_of(word, path)]
        own = [path for path in all_files() if word in env_names(path)]
        return _python(word, [*several[:1], *own[:1]], wanted)
    if "/" in word or word in (".", ".."):
        return _folder(word)
    if main_source(Path(OCEAN) / word):
        return _folder(f"{OCEAN}/{word}")
    if word in (found := variants()):
        return resolve_file(found[word])
    return NamedEnvironment(word, "", [*_defaults(), find_config(word)])


def resolve_file(path: Path, wanted: Wanted = NOTHING) -> NamedEnvironment:
    """The environment that a file is about, configured by it: one's own file, or a saved run's.

    Raises:
        UserError: it is about several environments.
    """
    name = env_names(path)[0]
    if "*" in name:
        raise UserError(f"{path} is for all of {name}", f"name one: {name.replace('*', 'NAME')}")
    if ":" in name:
        return _python(name, [path], wanted._replace(whole=wanted.whole or is_whole(path)))
    return NamedEnvironment(name, "", [*_defaults(), path])


def _python(name: str, own: list[Path], wanted: Wanted) -> NamedEnvironment:
    """An environment in Python: the files of its family, then its own."""
    said = wanted.asked or last_said(FAMILY, own)
    family = wanted.family if said in ("", AUTO) else said
    if wanted.whole:  # keys that a family's files got since weren't the run's
        return NamedEnvironment(name, "", [*_defaults(), *own], family)
    chosen = FAMILIES.get(family) or FAMILIES[ASSUMED]  # a wrong word is refused when keys are read
    memory = says_memory(wanted.network or last_said(NETWORK, own))
    layers = [path for file in (PYTHON, *chosen.files_for(memory)) for path in layer(file)]
    partly = frozenset(path for path in layers if path.name == chosen.partly)
    return NamedEnvironment(name, "", [*_defaults(), *layers, *own], family, True, partly)


def _beside(path: Path) -> NamedEnvironment | None:
    """The environment that a file in a ``config`` folder is about, from the ``ocean`` beside it.

    The file may name it, but not by a path, which could lead to anybody's sources.
    """
    names = [name for name in (*env_names(path), path.stem) if re.fullmatch(r"\w[\w.+-]*", name)]
    for configs in (above for above in path.resolve().parents if above.name in CONFIGS):
        for folder in (configs.parent / OCEAN / name for name in names):
            if main_source(folder) and (
                folder_version(folder) == "4.0" or path.resolve() == configs / f"{folder.name}.ini"
            ):
                return _configured(folder, configs, path)
    return None


def _configured(folder: Path, configs: Path, path: Path) -> NamedEnvironment:
    """An environment's folder with a file of a ``config`` folder, and that folder's default.ini."""
    theirs = [file for file in [configs / "default.ini"] if file.is_file()]
    return NamedEnvironment(folder.name, str(folder), [*_defaults(), *theirs, path])


def _folder(word: str) -> NamedEnvironment:
    """An environment's folder, with its file: in it, or in a ``config`` folder above it."""
    version = folder_version(word)
    folder = Path(word).resolve()

    def about_it(files: Iterable[Path]) -> list[Path]:
        if version == "5.0":
            return [path for path in files if path.name == f"{folder.name}.ini"]
        return [path for path in files if folder.name in env_names(path)]

    inside = sorted(folder.glob("*.ini"))
    if own := about_it(inside):
        return NamedEnvironment(folder.name, str(folder), [*_defaults(), own[0]])
    for configs in (above / name for above in folder.parents for name in CONFIGS):
        if configs.is_dir():
            deeper = configs.glob("*.ini") if version == "5.0" else configs.rglob("*.ini")
            if found := about_it(sorted(deeper)):
                return _configured(folder, configs, found[0])
    if len(inside) > 1:
        names = ", ".join(path.name for path in inside)
        raise UserError(
            f"none of the files in {word} is about {folder.name}: {names}",
            f"call one {folder.name}.ini"
            + (f", or give it [base] env_name = {folder.name}" if version == "4.0" else ""),
        )
    return NamedEnvironment(folder.name, str(folder), [*_defaults(), *inside])


def _is_one_of(name: str, path: Path) -> bool:
    """Whether a file is about several environments, this one among them."""
    return any("*" in several and fnmatchcase(name, several) for several in env_names(path))


def _defaults() -> list[Path]:
    """default.ini."""
    return layer("default.ini")
