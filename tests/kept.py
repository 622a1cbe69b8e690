"""Programs, and copies of folders with changes, at places that depend on their contents alone.

What is compiled of such a copy is found again in the next run: an environment's library is named by
its folder's path too, and pytest gives every run other folders.
"""

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from puffer_mlx.system import private_folders
from puffer_mlx.system.compiler import Kind, compile_shared
from puffer_mlx.system.private_folders import cache_directory


def kept_copy(
    folder: Path, change: Callable[[Path], object] = lambda _: None, only: Iterable[str] = (".",)
) -> Path:
    """Copy a folder and change the copy; return the cached, read-only result.

    Args:
        folder: Folder to copy. The copy has its name.
        change: Called with the path of the copy.
        only: Paths to copy, by default everything.
    """
    copies = cache_directory() / "test-copies"
    private_folders.make_private_folder(copies)
    with tempfile.TemporaryDirectory(dir=copies) as scratch:
        made = Path(scratch) / folder.name
        for part in only:
            shutil.copytree(folder / part, made / part)
        change(made)
        contents = _contents(made)
        place = copies / contents[:24] / folder.name
        if place.exists() and _contents(place) != contents:
            shutil.rmtree(place)
        place.parent.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # it is there already
            made.rename(place)
    assert _contents(place) == contents
    return place


def compile_program(
    name: str,
    sources: Sequence[Path],
    flags: Sequence[str],
    compiler: str = "cc",
    depends: Iterable[Path] = (),
    include: Sequence[Path] = (),
) -> Path:
    """Compile a C or C++ program; return its cached path."""
    kind = Kind("", ())
    return compile_shared(name, sources, flags, compiler, depends, include, kind=kind)


def edit(file: Path, old: str, new: str) -> None:
    """Replace a text in a file; the text must occur there."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def _contents(folder: Path) -> str:
    """Return a hash of the names and bytes of all files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()
