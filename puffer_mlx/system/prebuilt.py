"""Find compiled libraries that came with the wheel, and check libraries in the cache.

A library in the wheel (``puffer_mlx/prebuilt``) is used only if it was compiled from the same
sources, for the same MLX and Python, and for a CPU level that this CPU has. Otherwise
``find_library`` returns the reason, and the library is compiled on this machine. The choice depends
only on the installed packages and the CPU, so all runs on this machine use the same library. A
library in the cache (``compiler.py``) is used only if its hash is right (``is_intact``).
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
LIST_FILE = "libraries.json"
_V3 = frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"])
LEVELS = {  # required CPU features by level, best level first; "" runs on every CPU
    "x86-64-v4": _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]),
    "x86-64-v3": _V3,
    "": frozenset(),
}


class Prebuilt(NamedTuple):
    """A compiled library that comes with the wheel, as listed in ``libraries.json``.

    Args:
        name: Name of the library, for example ``cpu_ops``.
        file: File name.
        level: CPU level, a key of ``LEVELS``.
        built_for: Versions that must be the same on this machine: ``{"MLX": "0.32.4"}``.
        sha256: SHA-256 of the file.
    """

    name: str
    file: str
    level: str
    built_for: dict[str, str]
    sha256: str


class SearchResult(NamedTuple):
    """Result of the search for a compiled library in the wheel.

    Args:
        path: Path of the library, or None to compile it.
        reason: Why the wheel's library can't be used, as a clause; "" if the wheel has none.
        built_for: Versions for which the wheel's library was compiled.
    """

    path: Path | None
    reason: str = ""
    built_for: Mapping[str, str] = {}


def find_library(name: str, wanted: Mapping[str, str]) -> SearchResult:
    """Find a compiled library in the installed wheel that fits this machine.

    Args:
        name: Name of the library.
        wanted: Versions that the library must be compiled for, as in ``Prebuilt.built_for``.
    """
    libraries = [library for library in _read_list() if library.name == name]
    if not libraries or "PUFFER_MLX_NO_PREBUILT" in os.environ:
        return SearchResult(None)
    built_for = libraries[0].built_for
    features = cpu_features()
    for key, value in wanted.items():
        if built_for.get(key) != value:
            reason = f"the one that came with puffer_mlx is for {key} {built_for.get(key)}"
            return SearchResult(None, f"{reason}, not {value}", built_for)
    for library in sorted(libraries, key=lambda each: [*LEVELS].index(each.level)):
        if LEVELS[library.level] <= features:
            path = FOLDER / library.file
            if _has_digest(path, library.sha256):
                return SearchResult(path)
            return SearchResult(None, "the one that came with puffer_mlx is damaged", built_for)
    return SearchResult(None, "the one that came with puffer_mlx is for newer CPUs", built_for)


def add_library(
    folder: Path, name: str, level: str, built_for: Mapping[str, str], library: Path
) -> None:
    """Add a compiled library to the folder that the wheel will contain as ``FOLDER``.

    Args:
        folder: Folder that the library is copied to, with the list of its libraries.
        name: Name of the library.
        level: CPU level, a key of ``LEVELS``.
        built_for: Versions that the library was compiled for.
        library: Path of the compiled library.
    """
    file = f"{'-'.join(filter(None, (name, level)))}.so"
    shutil.copyfile(library, folder / file)
    entry = Prebuilt(name, file, level, dict(built_for), file_digest(library))
    entries = [each._asdict() for each in (*_read_list(folder), entry)]
    (folder / LIST_FILE).write_text(json.dumps(entries, indent=1) + "\n")


def text_hash(*texts: str | bytes) -> str:
    """Return a hash of texts, 16 hexadecimal digits. The texts must contain no NUL."""
    contents = (
        text.encode(errors="surrogateescape") if isinstance(text, str) else text for text in texts
    )
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:16]


def digest_path(library: Path) -> Path:
    """Return the path of the hidden file with the hash of a compiled library in the cache."""
    return library.with_name(f".{library.name}.sha256")


def is_intact(library: Path) -> bool:
    """Return True if a compiled library is in the cache and has the recorded hash."""
    try:
        return _has_digest(library, digest_path(library).read_text(errors="replace"))
    except OSError:
        return False


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal text.

    Raises:
        OSError: The file can't be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cpu_features() -> frozenset[str]:
    """Return this CPU's features as Linux names them, for example ``avx2``; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(line.partition(":")[2].split())


def levels() -> list[str]:
    """Return the CPU levels that a wheel built on this machine contains libraries for."""
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        return [level for level in LEVELS if level]
    return [""]


def _read_list(folder: Path | None = None) -> list[Prebuilt]:
    """Read the list of compiled libraries in a folder, by default the wheel's; empty if invalid."""
    try:
        entries = json.loads(((folder or FOLDER) / LIST_FILE).read_bytes())
        return [Prebuilt(**entry) for entry in entries]
    except (OSError, ValueError, TypeError):
        return []


def _has_digest(path: Path, sha256: str) -> bool:
    try:
        return file_digest(path) == sha256
    except OSError:
        return False
