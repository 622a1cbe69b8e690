"""Compile C and C++ sources on first use, and keep the result for the next time.

A shared library, or a program, is named by a hash of everything that decides its contents:
sources, headers, flags, the compiler's version and the platform. It is written under another name,
synced and renamed, so a killed process leaves no half library; those that need the same one at the
same time wait for the first, which compiles it. Beside it lies a hash of what was written: a
library that is cut off or damaged may end the process that loads it, so it is compiled again
instead.
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
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from puffer_mlx.errors import UserError
from puffer_mlx.system import private_folders, voice
from puffer_mlx.system.files import alone, sync
from puffer_mlx.system.prebuilt import file_digest, is_whole, seal
from puffer_mlx.system.private_folders import cache_directory

_SOURCE_SUFFIXES = {".c", ".cc", ".cpp", ".h", ".hh", ".hpp", ".inc", ".def"}
_SHOWN_LINES = 6
_TELLING = ("error", "undefined", "cannot find")  # the last: a linker's, of a missing library
NOTICE_SECONDS = 1.0  # a compiler that takes longer is announced
_RELEASE = Path("/etc/os-release")
_COMMANDS = {  # by ID, or a word of ID_LIKE: the command, packages for C, further ones for C++
    "debian": ("apt install", "gcc libc6-dev", "g++ python3-dev"),
    "fedora": ("dnf install", "gcc", "gcc-c++ python3-devel"),
    "suse": ("zypper install", "gcc", "gcc-c++ python3-devel"),
    "arch": ("pacman -S", "gcc", ""),
    "alpine": ("apk add", "gcc musl-dev", "g++ python3-dev"),
}
_T = TypeVar("_T")
_PerSource = Mapping[Path, Sequence[str]]


class Kind(NamedTuple):
    """What a compiler is to make."""

    suffix: str
    flags: tuple[str, ...]


SHARED = Kind(".so", ("-fPIC", "-shared"))
OBJECT = Kind(".o", ("-fPIC", "-c"))  # of one source, for the flags of a library


def source_files(folder: Path) -> list[Path]:
    """All C and C++ sources and headers below a folder, sorted."""
    return sorted(p for p in folder.rglob("*") if p.suffix in _SOURCE_SUFFIXES and p.is_file())


def compile_shared(
    name: str,
    sources: Sequence[Path],
    flags: Sequence[str],
    compiler: str = "cc",
    depends: Iterable[Path] = (),
    include: Sequence[Path] = (),
    usually: str = "a few seconds",
    again: bool = False,
    further: _PerSource | None = None,
    kept: Path | None = None,
    kind: Kind = SHARED,
) -> Path:
    """Return a shared library made from ``sources``, compiling it only if the cache has none.

    Several sources are compiled at the same time, as many as there are cores.

    Args:
        name: what it is, for messages and as the beginning of the file's name.
        sources: the files to compile, in order.
        flags: compiler and linker flags, without ``-shared``, ``-fPIC`` and ``-o``; libraries,
            and what begins with ``-l`` or ``-Wl``, are put behind the sources.
        compiler: ``cc`` or ``c++``; ``$CC`` and ``$CXX`` take precedence and may contain arguments.
        depends: further files the result depends on (headers).
        include: folders where ``#include "..."`` looks. Only what is in ``depends`` decides, not
            where it lies: a copy of this package compiles nothing anew.
        usually: how long it takes, in words, for whoever waits.
        again: compile it even if the cache has one.
        further: flags of single sources, behind ``flags``; taken where there are several sources.
        kept: the library's path below ``cache_directory()``; None: a hash names it.
        kind: how the file is called and made, where it is to be something else.

    Returns:
        The library's path below ``cache_directory()``.

    Raises:
        UserError: a source is missing, there is no compiler, it fails, or the cache can't be
            written.
    """
    further = further or {}
    command = _command(compiler)
    digest = hashlib.sha256()
    of_sources = [flag for source in sources for flag in further.get(source, ())]
    for part in (_identity(tuple(command)), sys.platform, platform.machine(), *flags, *of_sources):
        digest.update(part.encode(errors="surrogateescape") + b"\0")  # a path needn't be UTF-8
    for path in (*sources, *depends):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(
                f"{name}: can't read {path}: {error.strerror}",
                "a source file is missing or unreadable; reinstall puffer_mlx or restore the file",
            ) from None
        header = f"{path.name} {len(content)}\0"
        digest.update(header.encode(errors="surrogateescape") + content)
    search = [f"-iquote{folder}" for folder in include]
    output = kept or cache_directory() / f"{name}-{digest.hexdigest()[:24]}{kind.suffix}"
    if again or not is_whole(output):
        when = "again" if output.exists() else "for the first time"
        with _announced(name, f"{when}, which takes {usually}"):
            _make_folder(name, output.parent)
            with alone(output.with_name(f".{output.name}.lock")):
                if again or not is_whole(output):  # else another process made it meanwhile
                    every = [*kind.flags, *search, *flags]
                    _compile(name, command, sources, every, further, output)
        _compiled_now.add(output)
    return output


def _command(compiler: str) -> list[str]:
    """Return a compiler's command: the words of ``$CC`` or ``$CXX`` if set, else its name.

    Raises:
        UserError: the variable has no words, or a quote that isn't closed.
    """
    variable = {"cc": "CC", "c++": "CXX"}.get(compiler, "")
    text = os.environ.get(variable) or compiler
    try:
        words, problem = shlex.split(text), "it names no compiler"
    except ValueError as error:
        words, problem = [], str(error)
    if not words:
        hint = f"unset {variable}, or set it to a compiler and its options"
        raise UserError(f"the environment variable {variable} is {text!r}: {problem}", hint)
    return words


class CompilerError(UserError):
    """A compiler refused a source.

    Args:
        name: of the library.
        command: the compiler's.
        status: with which it ended.
        lines: its errors.
    """

    def __init__(self, name: str, command: list[str], status: int, lines: list[str]) -> None:
        shown = "\n".join(f"  {line}" for line in lines[:_SHOWN_LINES])
        super().__init__(
            f"{name}: {shlex.join(command)} failed with status {status}:\n{shown}",
            "correct the source, or take a newer compiler (CC, CXX); above are its first errors",
        )
        self.lines = lines


_compiled_now: set[Path] = set()  # by this process


def load_compiled(compile: Callable[..., Path], load: Callable[[Path], _T]) -> _T:
    """Compile something and load it; what was in the cache and can't be loaded, compile again.

    Args:
        compile: what ``compile_shared`` returns, with ``again=True`` the second time.
        load: its errors are OSError, ImportError or UserError.

    Raises:
        UserError: as ``compile_shared``, and what ``load`` raises of a library made just now.
    """
    path = compile()
    try:
        return load(path)
    except (OSError, ImportError, UserError):
        if path in _compiled_now:
            raise
    return load(compile(again=True))


@contextmanager
def _announced(name: str, more: str) -> Iterator[None]:
    """Say that something is compiled, once that takes long, and how long it took."""
    began, shown = time.monotonic(), threading.Event()

    def tell() -> None:
        voice.note(f"puffer_mlx: compiling {name} {more}", error=True)
        shown.set()

    notice = threading.Timer(NOTICE_SECONDS, tell)
    notice.start()
    try:
        yield
    finally:
        notice.cancel()
        notice.join()
    if shown.is_set():
        took = time.monotonic() - began
        voice.note(f"puffer_mlx: compiling {name} took {took:.0f} s", error=True)


@functools.cache
def _identity(command: tuple[str, ...]) -> str:
    """What ``compiler --version`` prints."""
    try:
        return subprocess.run(
            [*command, "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        cpp = "+" in Path(command[0]).name
        raise UserError(
            f"the compiler {shlex.join(command)!r} can't be run: {_why(error)}",
            f"{compiler_hint(cpp)}; or set {'CXX' if cpp else 'CC'} to another",
        ) from None


def _why(error: OSError | subprocess.CalledProcessError) -> str:
    """In words; those of a program that could be run: macOS has one that isn't the compiler."""
    if isinstance(error, OSError):
        return str(error)
    lines = [line for line in (error.stderr or "").splitlines() if line.strip()]
    return lines[0] if lines else f"it ended with status {error.returncode}"


def _make_folder(name: str, folder: Path) -> None:
    """Make the cache's folder, if it isn't there, and see that it can be written to."""
    try:
        private_folders.make(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"{name}: can't write compiled libraries to {folder}: {error.strerror}",
            "set PUFFER_MLX_CACHE to a folder you can write to",
        ) from None


def _compile(
    name: str,
    command: list[str],
    sources: Sequence[Path],
    flags: Sequence[str],
    further: _PerSource,
    library: Path,
) -> None:
    handle, partial = tempfile.mkstemp(".partial", f"{name}-", library.parent)
    os.close(handle)
    late = [f for f in flags if f.startswith(("-l", "-Wl")) or f.endswith((".a", ".o", ".so"))]
    early = [*command, *(flag for flag in flags if flag not in late)]
    try:
        if len(sources) == 1:
            _run_all(name, command, [[*early, "-o", partial, str(sources[0]), *late]])
        else:
            with tempfile.TemporaryDirectory(".partial", f"{name}-", library.parent) as folder:
                objects = [f"{folder}/{i}.o" for i in range(len(sources))]
                _run_all(
                    name,
                    command,
                    [
                        [*early, *further.get(source, ()), "-c", "-o", target, str(source)]
                        for source, target in zip(sources, objects, strict=True)
                    ],
                )
                _run_all(name, command, [[*early, "-o", partial, *objects, *late]])
        os.chmod(partial, 0o755)
        _publish(Path(partial), library)
    finally:
        Path(partial).unlink(missing_ok=True)


def _run_all(name: str, compiler: list[str], calls: Sequence[Sequence[str]]) -> None:
    """Call a compiler, several times at once; UserError with its first errors if a call fails."""
    running: list[subprocess.Popen[str]] = []
    lock, ended = threading.Lock(), False  # a thread may be starting a call while others are ended

    def errors_of(call: Sequence[str]) -> tuple[int, list[str]]:
        environment = {**os.environ, "LC_ALL": "C"}
        process = subprocess.Popen(
            call,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
        )
        with lock:
            running.append(process)
            if ended:
                process.kill()
        _, errors = process.communicate()
        return process.returncode, errors.splitlines()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            done = [*pool.map(errors_of, calls)]
        except BaseException:  # Ctrl-C, of this process alone
            pool.shutdown(wait=False, cancel_futures=True)
            with lock:
                ended = True
                for process in running:
                    process.kill()
            raise
    if failed := [(status, lines) for status, lines in done if status != 0]:
        lines = [line for _, lines in failed for line in lines]
        errors = [line for line in lines if any(w in line for w in _TELLING)] or lines
        raise CompilerError(name, compiler, failed[0][0], errors)


def _publish(partial: Path, library: Path) -> None:
    """Rename, hash last: until it is there, and on the disk, the library doesn't count."""
    digest = file_digest(partial).encode()
    try:
        sync(partial)
        os.replace(partial, library)
        partial.write_bytes(digest)
        sync(partial)
        os.replace(partial, seal(library))
        sync(library.parent)
    except OSError as error:
        raise UserError(
            f"can't write {library}: {error.strerror}",
            "free some space, or set PUFFER_MLX_CACHE to a folder elsewhere",
        ) from None


def compiler_hint(cpp: bool = False) -> str:
    """How to get a C compiler: ``xcode-select --install``, or ``apt install gcc libc6-dev``.

    Args:
        cpp: a C++20 compiler and Python's headers instead.
    """
    what = "a C++20 compiler and Python's headers" if cpp else "a C compiler"
    if sys.platform == "darwin":
        return f"install {what}: xcode-select --install"
    known = next((word for word in _distribution() if word in _COMMANDS), "")
    command, c, more = _COMMANDS[known or "debian"]
    words = f"{command} {(more or c) if cpp else c}"
    if known:
        return f"install {what}: {words}"
    return f"install {what} with your system's package manager (Debian: {words})"


def _distribution() -> list[str]:
    """ID and ID_LIKE of the system's description; empty if it has none."""
    try:
        lines = _RELEASE.read_text(errors="replace").splitlines()
    except OSError:
        return []
    fields: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition("=")
        fields[key] = value.strip().strip("\"'")
    words = f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".split()
    return [part for word in words for part in (word, word.partition("-")[0])]
