"""The files of a native environment: which there are, what they are, and what they need.

An environment of PufferLib lies in ``REPOSITORY/ocean/NAME`` and may include what lies in the
repository, its ``src`` and its ``vendor``, as the compiler is told there.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.config.dialects import folder_version, main_source
from puffer_mlx.system.compiler import source_files
from puffer_mlx.system.files import shipped

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_RAYLIB = {"raylib.h", "raymath.h", "rlgl.h"}
_RANDOM = re.compile(rb"\b(?:s?rand|GetRandomValue|LoadRandomSequence|SetRandomSeed)[ \t]*\(")
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MASKS = re.compile(rb"\baction_mask\b(?!\s*=\s*(?:NULL|0)\s*;)")
_PROTECTS = re.compile(
    rb"^[ \t]*#[ \t]*pragma[ \t]+omp[ \t]+(?:critical|atomic)|\bomp_\w*lock\b", re.MULTILINE
)


class Needs(NamedTuple):
    """What the C files that are compiled ask for."""

    raylib: bool  # they include one of its headers
    random: bool  # they draw from the C library's generator, or raylib's
    openmp: bool  # they protect what environments share with OpenMP
    masks: bool = False  # of 5.0: they do something with action_mask


def environments_folder() -> Path:
    """The folder ``envs`` that comes with puffer_mlx."""
    return shipped("envs")


def repository(folder: Path) -> Path | None:
    """The folder that holds ``ocean``, if the environment lies in one."""
    folder = folder.resolve()
    above = list(folder.parents)[:4]
    return next((path.parent for path in above if path.name == "ocean"), None)


def our_headers(folder: Path) -> list[Path]:
    """Where the contract of an environment's release is, before anything else that is included."""
    include = environments_folder() / "include"
    return [include / "release_5", include] if folder_version(folder) == "5.0" else [include]


def include_folders(folder: Path) -> list[Path]:
    """Where includes are looked for, besides beside the file and in ``our_headers``."""
    folder = folder.resolve()
    root = repository(folder)
    inside = [] if root is None else [root, root / "src", root / "vendor"]
    return [folder, *(path for path in inside if path.is_dir())]


def _reached(begin: Iterable[Path], folder: Path) -> set[Path]:
    """Files and what they include, directly or not, but for what ``our_headers`` has."""
    ours = [place.resolve() for place in our_headers(folder)]
    reached = {path.resolve() for path in begin}
    waiting, places = sorted(reached), include_folders(folder)
    while waiting:
        file = waiting.pop()
        for name in map(os.fsdecode, _INCLUDE.findall(file.read_bytes())):
            headers = ((place, (place / name).resolve()) for place in ours)
            if any(path.is_file() and path.is_relative_to(place) for place, path in headers):
                continue
            candidates = ((place / name).resolve() for place in (file.parent, *places))
            path = next(filter(Path.is_file, candidates), None)
            if path and path not in reached:
                reached.add(path)
                waiting.append(path)
    return reached


def environment_files(folder: Path | str) -> list[Path]:
    """The sources and headers of an environment, by their paths relative to its folder.

    All in the folder, and what they include from elsewhere, directly or not: an environment may be
    a few lines around another one. The stepper's own aren't among them.
    """
    folder = Path(folder).resolve()
    files = _reached(source_files(folder), folder)
    return sorted(files, key=lambda path: os.path.relpath(path, folder))


def sources_digest(folder: Path | str) -> str:
    """What tells two versions of an environment apart: a hash of its files, wherever they are."""
    digest = hashlib.sha256()
    for path in environment_files(folder):
        content = path.read_bytes()
        name = Path(os.path.relpath(path, Path(folder).resolve())).as_posix()
        header = f"{name} {len(content)}\0"
        digest.update(header.encode(errors="surrogateescape") + content)
    return digest.hexdigest()[:24]


def needs(folder: Path | str) -> Needs:
    """What the file of an environment that is compiled, and what it includes, asks for.

    Raises:
        UserError: it is no environment's folder.
    """
    folder = Path(folder).resolve()
    version, main = folder_version(folder), main_source(folder)
    texts = [path.read_bytes() for path in _reached([main] if main else [], folder)]
    included = {os.fsdecode(name) for text in texts for name in _INCLUDE.findall(text)}
    return Needs(
        raylib=version == "5.0" or bool(included & _RAYLIB),  # pufferenv.h includes it
        random=any(_RANDOM.search(text) for text in texts),
        openmp=any(_PROTECTS.search(text) for text in texts),
        masks=version == "5.0" and any(_MASKS.search(_COMMENT.sub(b"", text)) for text in texts),
    )
