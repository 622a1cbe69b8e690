"""Compiled libraries: those of a wheel, in ``puffer_mlx/prebuilt``, and those in the cache.

A wheel's library is used only if it was compiled from the same sources, for the same MLX, Python
and kind of CPU. Otherwise ``find`` returns the reason, and the library is compiled here. The choice
depends only on what is installed, so it doesn't change the results of a run. A library in the cache
(``compiler.py``) is used only if its hash is right (``is_intact``).
"""

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "prebuilt"
LIST = "libraries.json"
_V3 = frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"])
LEVELS = {  # CPU features by level, the best first; "" for every CPU of an architecture
    "x86-64-v4": _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]),
    "x86-64-v3": _V3,
    "": frozenset(),
}


class Prebuilt(NamedTuple):
    """A library in the list of a wheel.

    Args:
        name: Name of the library, for example ``cpu_ops``.
        file: Name of the file.
        level: CPU level, a key of ``LEVELS``.
        made_for: Versions that must be the same here, for example ``{"MLX": "0.32.4"}``.
        sha256: SHA-256 of the file.
    """

    name: str
    file: str
    level: str
    made_for: dict[str, str]
    sha256: str


class SearchResult(NamedTuple):
    """The result of ``find``.

    Args:
        path: path of the library, or None to compile it.
        reason: the reason why the wheel's library isn't used; empty without such a library.
        made_for: versions for which the wheel's library was compiled.
    """

    path: Path | None
    reason: str = ""
    made_for: Mapping[str, str] = {}


def find(name: str, wanted: Mapping[str, str]) -> SearchResult:
    """Find the wheel's library for this machine.

    Args:
        name: name of the library.
        wanted: versions for which it must be compiled, as in ``Prebuilt.made_for``.
    """
    libraries = [library for library in _list() if library.name == name]
    if not libraries or "PUFFER_MLX_NO_PREBUILT" in os.environ:
        return SearchResult(None)
    made_for = libraries[0].made_for
    features = cpu_features()
    for what, value in wanted.items():
        if made_for.get(what) != value:
            why = f"the one that came with puffer_mlx is for {what} {made_for.get(what)}"
            return SearchResult(None, f"{why}, not {value}", made_for)
    for library in sorted(libraries, key=lambda one: [*LEVELS].index(one.level)):
        if LEVELS[library.level] <= features:
            path = FOLDER / library.file
            if _has_digest(path, library.sha256):
                return SearchResult(path)
            return SearchResult(None, "the one that came with puffer_mlx is damaged", made_for)
    return SearchResult(None, "the one that came with puffer_mlx is for newer CPUs", made_for)


def add(folder: Path, name: str, level: str, made_for: Mapping[str, str], library: Path) -> None:
    """Copy a compiled library into a folder that becomes ``FOLDER``, and add it to the list."""
    file = f"{'-'.join(filter(None, (name, level)))}.so"
    shutil.copyfile(library, folder / file)
    entry = Prebuilt(name, file, level, dict(made_for), file_digest(library))
    entries = [*_list(folder), entry]
    (folder / LIST).write_text(json.dumps([one._asdict() for one in entries], indent=1) + "\n")


def hash_of(*texts: str | bytes) -> str:
    """Return a short hash of texts that contain no NUL, in their order."""
    contents = (
        text.encode(errors="surrogateescape") if isinstance(text, str) else text for text in texts
    )
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:16]


def digest_path(library: Path) -> Path:
    """Return the path of the hash of a library in the cache, a hidden file beside it."""
    return library.with_name(f".{library.name}.sha256")


def is_intact(library: Path) -> bool:
    """Return True if a library is in the cache and undamaged."""
    try:
        return _has_digest(library, digest_path(library).read_text(errors="replace"))
    except OSError:
        return False


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        OSError: the file can't be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cpu_features() -> frozenset[str]:
    """Return this CPU's features by Linux's names; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(line.partition(":")[2].split())


def levels() -> list[str]:
    """Return the CPU levels to build for on a machine of this kind."""
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        return [level for level in LEVELS if level]
    return [""]


def _list(folder: Path | None = None) -> list[Prebuilt]:
    try:
        entries = json.loads(((folder or FOLDER) / LIST).read_bytes())
        return [Prebuilt(**entry) for entry in entries]
    except (OSError, ValueError, TypeError):
        return []


def _has_digest(path: Path, sha256: str) -> bool:
    try:
        return file_digest(path) == sha256
    except OSError:
        return False
