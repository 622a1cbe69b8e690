"""The files of a native environment: which there are, what they are, and what they need.

An environment of PufferLib 4.0 lies in ``REPOSITORY/ocean/NAME`` and may include what lies in the
repository, its ``src`` and its ``vendor``, as the compiler is told there.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.system.compiler import source_files
from puffer_mlx.system.package_data import shipped

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_RAYLIB = {"raylib.h", "raymath.h", "rlgl.h"}
_RANDOM = re.compile(rb"\b(?:s?rand|GetRandomValue|LoadRandomSequence|SetRandomSeed)[ \t]*\(")
_PROTECTS = re.compile(
    rb"^[ \t]*#[ \t]*pragma[ \t]+omp[ \t]+(?:critical|atomic)|\bomp_\w*lock\b", re.MULTILINE
)


class Needs(NamedTuple):
    """What the C files that are compiled ask for."""

    raylib: bool  # they include one of its headers
    random: bool  # they draw from the C library's generator, or raylib's
    openmp: bool  # they protect what environments share with OpenMP


def environments_folder() -> Path:
    """The folder ``envs`` that comes with puffer_mlx."""
    return shipped("envs")


def repository(folder: Path) -> Path | None:
    """The folder that holds ``ocean``, if the environment lies in one."""
    folder = folder.resolve()
    above = list(folder.parents)[:4]
    return next((path.parent for path in above if path.name == "ocean"), None)


def include_folders(folder: Path) -> list[Path]:
    """Where includes are looked for, besides beside the file and in ``envs/include``."""
    folder = folder.resolve()
    root = repository(folder)
    inside = [] if root is None else [root, root / "src", root / "vendor"]
    return [folder, *(path for path in inside if path.is_dir())]


def _reached(begin: Iterable[Path], folder: Path) -> set[Path]:
    """Files and what they include, directly or not, but for what ``envs/include`` has."""
    ours = environments_folder() / "include"
    found = {path.resolve() for path in begin}
    waiting = sorted(found)
    places = include_folders(folder)
    while waiting:
        file = waiting.pop()
        for name in map(os.fsdecode, _INCLUDE.findall(file.read_bytes())):
            here = (ours / name).resolve()
            if here.is_file() and here.is_relative_to(ours.resolve()):
                continue
            for place in (file.parent, *places):
                path = (place / name).resolve()
                if path.is_file():
                    if path not in found:
                        found.add(path)
                        waiting.append(path)
                    break
    return found


def environment_files(folder: Path | str) -> list[Path]:
    """The sources and headers of an environment, by their paths relative to its folder.

    All in the folder, and what they include from elsewhere, directly or not: an environment may be
    a few lines around another one. The stepper's own aren't among them.
    """
    folder = Path(folder).resolve()
    found = _reached(source_files(folder), folder)
    return sorted(found, key=lambda path: os.path.relpath(path, folder))


def sources_digest(folder: Path | str) -> str:
    """What tells two versions of an environment apart: a hash of its files, wherever they are."""
    digest = hashlib.sha256()
    for path in environment_files(folder):
        content = path.read_bytes()
        name = Path(os.path.relpath(path, Path(folder).resolve())).as_posix()
        digest.update(f"{name} {len(content)}\0".encode() + content)
    return digest.hexdigest()[:24]


def needs(folder: Path | str) -> Needs:
    """What an environment's ``binding.c``, and what it includes, asks for."""
    folder = Path(folder).resolve()
    texts = [path.read_bytes() for path in _reached([folder / "binding.c"], folder)]
    included = {os.fsdecode(name) for text in texts for name in _INCLUDE.findall(text)}
    return Needs(
        raylib=bool(included & _RAYLIB),
        random=any(_RANDOM.search(text) for text in texts),
        openmp=any(_PROTECTS.search(text) for text in texts),
    )
