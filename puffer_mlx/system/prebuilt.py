"""Libraries that are compiled already: a wheel's, in ``puffer_mlx/prebuilt``, and the cache's.

One of a wheel is taken only where it is what a compiler here would make: of the same sources, for
the same MLX, Python and kind of CPU. Else ``find`` says why, and it is compiled as it always was.
What was taken depends on what is installed and on nothing that happened before, so a run's numbers
don't. One of the cache (``compiler.py``) has to be as it was written: ``is_whole``.
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
LEVELS = {  # of CPUs, the best first: what /proc/cpuinfo says of one; "": every CPU of its kind
    "x86-64-v4": _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]),
    "x86-64-v3": _V3,
    "": frozenset(),
}


class Prebuilt(NamedTuple):
    """A library of the list.

    Args:
        name: what it is: ``cpu_ops``.
        file: its file's name.
        level: of CPUs, one of ``LEVELS``.
        made_for: what must be the same here, by words for people: ``{"MLX": "0.32.4"}``.
        sha256: of its file.
    """

    name: str
    file: str
    level: str
    made_for: dict[str, str]
    sha256: str


class SearchResult(NamedTuple):
    """Where a library is, or why there is none.

    Args:
        path: the library; None: compile it.
        why_not: in words, where the package brings one that doesn't fit; "" where it brings none.
        made_for: what that one was made for.
    """

    path: Path | None
    why_not: str = ""
    made_for: Mapping[str, str] = {}


def find(name: str, wanted: Mapping[str, str]) -> SearchResult:
    """The package's library for this machine.

    Args:
        name: what it is.
        wanted: what it must have been made for: the keys and values of ``Prebuilt.made_for``.
    """
    libraries = [library for library in _list() if library.name == name]
    if not libraries or "PUFFER_MLX_NO_PREBUILT" in os.environ:
        return SearchResult(None)
    made_for, features = libraries[0].made_for, cpu_features()
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
    """Put a compiled library into a folder that becomes ``FOLDER``, and into its list."""
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


def seal(library: Path) -> Path:
    """Where the hash of a library in the cache is: hidden, beside it."""
    return library.with_name(f".{library.name}.sha256")


def is_whole(library: Path) -> bool:
    """Whether a library is in the cache, as it was written."""
    try:
        return _has_digest(library, seal(library).read_text(errors="replace"))
    except OSError:
        return False


def file_digest(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        OSError: it can't be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cpu_features() -> frozenset[str]:
    """What this CPU can do, in the words of Linux; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(line.partition(":")[2].split())


def levels() -> list[str]:
    """The kinds of CPUs to build for on a machine like this."""
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
