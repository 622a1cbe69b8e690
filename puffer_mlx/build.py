"""Compile C and C++ sources on first use, and keep the result for the next time.

A shared library is named by a hash of everything that decides its contents: sources, headers,
flags, the compiler's version and the platform. It is written under another name and renamed, so
processes that compile the same thing at once don't disturb each other, and a killed one leaves no
half library.
"""

import functools
import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from puffer_mlx.errors import UserError

_SOURCE_SUFFIXES = {".c", ".cc", ".cpp", ".h", ".hh", ".hpp", ".inc", ".def"}
_SHOWN_LINES = 6
NOTICE_SECONDS = 1.0  # a compiler that takes longer is announced


def cache_directory() -> Path:
    """Where compiled libraries are kept.

    ``$PUFFER_MLX_CACHE``, else the user's cache folder: ``~/Library/Caches/puffer_mlx`` on macOS,
    ``$XDG_CACHE_HOME/puffer_mlx`` or ``~/.cache/puffer_mlx`` elsewhere. It may not exist yet.
    """
    if chosen := os.environ.get("PUFFER_MLX_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "puffer_mlx"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "puffer_mlx"


def source_files(folder: Path) -> list[Path]:
    """All C and C++ sources and headers below a folder, sorted."""
    return sorted(p for p in folder.rglob("*") if p.suffix in _SOURCE_SUFFIXES and p.is_file())


def compile_shared(
    name: str,
    sources: Sequence[Path],
    flags: Sequence[str],
    compiler: str = "cc",
    depends: Iterable[Path] = (),
) -> Path:
    """Return a shared library made from ``sources``, compiling it only if the cache has none.

    Args:
        name: what it is, for messages and as the beginning of the file's name.
        sources: the files to compile, in order.
        flags: compiler and linker flags, without ``-shared``, ``-fPIC`` and ``-o``; libraries,
            and what begins with ``-l`` or ``-Wl``, are put behind the sources.
        compiler: ``cc`` or ``c++``; ``$CC`` and ``$CXX`` take precedence and may contain arguments.
        depends: further files the result depends on (headers).

    Returns:
        The library's path below ``cache_directory()``.

    Raises:
        UserError: a source is missing, there is no compiler, it fails, or the cache can't be
            written.
    """
    command = shlex.split(os.environ.get({"cc": "CC", "c++": "CXX"}.get(compiler, "")) or compiler)
    digest = hashlib.sha256()
    for part in (_identity(tuple(command)), sys.platform, platform.machine(), *flags):
        digest.update(part.encode() + b"\0")
    for path in (*sources, *depends):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(
                f"{name}: can't read {path}: {error.strerror}",
                "a source file is missing or unreadable; reinstall puffer_mlx or restore the file",
            ) from None
        digest.update(f"{path.name} {len(content)}\0".encode() + content)
    library = cache_directory() / f"{name}-{digest.hexdigest()[:24]}.so"
    if not library.exists():
        _compile(name, command, sources, flags, library)
    return library


@functools.cache
def _identity(command: tuple[str, ...]) -> str:
    """What ``compiler --version`` prints."""
    try:
        return subprocess.run(
            [*command, "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        hint = "xcode-select --install" if sys.platform == "darwin" else "apt install gcc (or g++)"
        raise UserError(
            f"the compiler {shlex.join(command)!r} can't be run: {error}",
            f"install one ({hint}), or set CC or CXX to another",
        ) from None


def _compile(
    name: str, command: list[str], sources: Sequence[Path], flags: Sequence[str], library: Path
) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(".partial", f"{name}-", library.parent)
    except OSError as error:
        raise UserError(
            f"{name}: can't write compiled libraries to {library.parent}: {error.strerror}",
            "set PUFFER_MLX_CACHE to a folder you can write to",
        ) from None
    os.close(handle)
    words = f"puffer_mlx: compiling {name} for the first time"
    notice = threading.Timer(NOTICE_SECONDS, print, [words], {"file": sys.stderr, "flush": True})
    notice.start()
    try:
        late = [f for f in flags if f.startswith(("-l", "-Wl")) or f.endswith((".a", ".so"))]
        early = [flag for flag in flags if flag not in late]
        done = subprocess.run(
            [*command, *early, "-fPIC", "-shared", "-o", partial, *map(str, sources), *late],
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
        if done.returncode != 0:
            lines = done.stderr.splitlines()
            errors = [line for line in lines if "error" in line or "undefined" in line] or lines
            shown = "\n".join(f"  {line}" for line in errors[:_SHOWN_LINES])
            raise UserError(
                f"{name}: {shlex.join(command)} failed with status {done.returncode}:\n{shown}",
                "correct the source; the lines above are the compiler's first errors",
            )
        os.chmod(partial, 0o755)
        os.replace(partial, library)
    finally:
        notice.cancel()
        Path(partial).unlink(missing_ok=True)
