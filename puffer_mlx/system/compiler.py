"""Compile C and C++ sources on first use, and cache the result.

A library's file name contains a hash of everything that it is compiled from: sources, headers,
flags, the compiler's version and the platform. The file is written under another name, synced and
renamed, so a killed process leaves no partial library. If several processes need the same library,
the first one compiles it and the others wait. A second file contains the library's hash: loading a
damaged library may crash the process, so it is compiled again instead.
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
from puffer_mlx.system import private_folders, verbosity
from puffer_mlx.system.files import sync, wait_for_lock
from puffer_mlx.system.prebuilt import digest_path, file_digest, is_intact
from puffer_mlx.system.private_folders import cache_directory

_SOURCE_SUFFIXES = {".c", ".cc", ".cpp", ".h", ".hh", ".hpp", ".inc", ".def"}
_SHOWN_LINES = 6
_ERROR_WORDS = ("error", "undefined", "cannot find")  # in messages of compilers and linkers
NOTICE_SECONDS = 1.0  # compilations that take longer are announced
_RELEASE = Path("/etc/os-release")
_COMMANDS = {  # ID or a word of ID_LIKE: (command, packages for C, packages for C++)
    "debian": ("apt install", "gcc libc6-dev", "g++ python3-dev"),
    "fedora": ("dnf install", "gcc", "gcc-c++ python3-devel"),
    "suse": ("zypper install", "gcc", "gcc-c++ python3-devel"),
    "arch": ("pacman -S", "gcc", ""),
    "alpine": ("apk add", "gcc musl-dev", "g++ python3-dev"),
}
_T = TypeVar("_T")
_PerSource = Mapping[Path, Sequence[str]]


class Kind(NamedTuple):
    """Kind of a compiler's output file: its suffix and the flags that produce it."""

    suffix: str
    flags: tuple[str, ...]


SHARED = Kind(".so", ("-fPIC", "-shared"))
OBJECT = Kind(".o", ("-fPIC", "-c"))  # of one source, compiled as for a library


def source_files(folder: Path) -> list[Path]:
    """Return all C and C++ sources and headers below a folder, sorted."""
    return sorted(p for p in folder.rglob("*") if p.suffix in _SOURCE_SUFFIXES and p.is_file())


def compile_shared(
    name: str,
    sources: Sequence[Path],
    flags: Sequence[str],
    compiler: str = "cc",
    depends: Iterable[Path] = (),
    include: Sequence[Path] = (),
    duration: str = "a few seconds",
    again: bool = False,
    source_flags: _PerSource | None = None,
    output: Path | None = None,
    kind: Kind = SHARED,
) -> Path:
    """Return the path of a compiled library. Compile it only if it isn't in the cache.

    Several sources are compiled in parallel, one per core.

    Args:
        name: Name of the library, for messages and as the beginning of the file name.
        sources: Files to compile, in order.
        flags: Compiler and linker flags, without ``-shared``, ``-fPIC`` and ``-o``. Libraries and
            flags that begin with ``-l`` or ``-Wl`` are put after the sources.
        compiler: ``cc`` or ``c++``; ``$CC`` and ``$CXX`` take precedence and may contain arguments.
        depends: Other files that the library depends on (headers).
        include: Folders searched for ``#include "..."``. The hash contains the files of
            ``depends``, not these folders, so a copy of this package compiles nothing again.
        duration: Usual duration as text, printed if compiling takes long.
        again: Compile even if the cache has the library.
        source_flags: Additional flags by source, used if there are several sources.
        output: Path of the library below ``cache_directory()``; None to name it by a hash.
        kind: Suffix and flags of the result.

    Returns:
        The library's path below ``cache_directory()``.

    Raises:
        UserError: A source is missing, there is no compiler, it fails, or the cache can't be
            written.
    """
    source_flags = source_flags or {}
    command = _command(compiler)
    digest = hashlib.sha256()
    more_flags = [flag for source in sources for flag in source_flags.get(source, ())]
    platform_texts = _identity(tuple(command)), sys.platform, platform.machine()
    for text in (*platform_texts, *flags, *more_flags):
        digest.update(text.encode(errors="surrogateescape") + b"\0")  # paths may be invalid UTF-8
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
    output = output or cache_directory() / f"{name}-{digest.hexdigest()[:24]}{kind.suffix}"
    if again or not is_intact(output):
        when = "again" if output.exists() else "for the first time"
        with _announced(name, f"{when}, which takes {duration}"):
            _make_folder(name, output.parent)
            with wait_for_lock(output.with_name(f".{output.name}.lock")):
                if again or not is_intact(output):  # else another process has compiled it
                    all_flags = [*kind.flags, *search, *flags]
                    _compile(name, command, sources, all_flags, source_flags, output)
        _compiled_now.add(output)
    return output


def _command(compiler: str) -> list[str]:
    """Return the command that runs a compiler: ``$CC`` or ``$CXX`` if set, else its name.

    Raises:
        UserError: The variable is blank or has an unclosed quote.
    """
    variable = {"cc": "CC", "c++": "CXX"}.get(compiler, "")
    text = os.environ.get(variable) or compiler
    try:
        words = shlex.split(text)
        problem = "it names no compiler"
    except ValueError as error:
        words = []
        problem = str(error)
    if not words:
        hint = f"unset {variable}, or set it to a compiler and its options"
        raise UserError(f"the environment variable {variable} is {text!r}: {problem}", hint)
    return words


class CompilerError(UserError):
    """Raised if a compiler reports errors in a source.

    Args:
        name: Name of the library.
        command: Command line that failed.
        status: Exit status of the compiler.
        lines: Lines of error messages.
    """

    def __init__(self, name: str, command: list[str], status: int, lines: list[str]) -> None:
        first_lines = "\n".join(f"  {line}" for line in lines[:_SHOWN_LINES])
        super().__init__(
            f"{name}: {shlex.join(command)} failed with status {status}:\n{first_lines}",
            "correct the source, or use a newer compiler (CC, CXX); above are its first errors",
        )
        self.lines = lines


_compiled_now: set[Path] = set()  # libraries that this process has compiled


def load_compiled(compile: Callable[..., Path], load: Callable[[Path], _T]) -> _T:
    """Compile and load a library. If the cached library can't be loaded, compile it again.

    Args:
        compile: Returns the library's path from ``compile_shared``; called with ``again=True`` the
            second time.
        load: Loads a library, or raises OSError, ImportError or UserError.

    Raises:
        UserError: Compiling failed, or a newly compiled library can't be loaded.
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
    """Print a notice if compiling, done in the block, takes long; at the end print its duration."""
    began = time.monotonic()
    printed = threading.Event()

    def print_notice() -> None:
        verbosity.note(f"puffer_mlx: compiling {name} {more}", error=True)
        printed.set()

    notice = threading.Timer(NOTICE_SECONDS, print_notice)
    notice.start()
    try:
        yield
    finally:
        notice.cancel()
        notice.join()
    if printed.is_set():
        took = time.monotonic() - began
        verbosity.note(f"puffer_mlx: compiling {name} took {took:.0f} s", error=True)


@functools.cache
def _identity(command: tuple[str, ...]) -> str:
    """Return what a compiler prints for ``--version``."""
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
    """Return the reason why a compiler didn't run; macOS's ``cc`` may be a placeholder."""
    if isinstance(error, OSError):
        return str(error)
    lines = [line for line in (error.stderr or "").splitlines() if line.strip()]
    return lines[0] if lines else f"it ended with status {error.returncode}"


def _make_folder(name: str, folder: Path) -> None:
    """Create the cache folder if it is missing, and check that it can be written to."""
    try:
        private_folders.make_private_folder(folder)
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
    source_flags: _PerSource,
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
                        [*early, *source_flags.get(source, ()), "-c", "-o", target, str(source)]
                        for source, target in zip(sources, objects, strict=True)
                    ],
                )
                _run_all(name, command, [[*early, "-o", partial, *objects, *late]])
        os.chmod(partial, 0o755)
        _publish(Path(partial), library)
    finally:
        Path(partial).unlink(missing_ok=True)


def _run_all(name: str, compiler: list[str], calls: Sequence[Sequence[str]]) -> None:
    """Run several commands of a compiler in parallel. Raises its errors as a CompilerError."""
    running: list[subprocess.Popen[str]] = []
    lock = threading.Lock()  # a thread may start a command while the others are killed
    ended = False

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
        except BaseException:  # Ctrl-C sent to this process only
            pool.shutdown(wait=False, cancel_futures=True)
            with lock:
                ended = True
                for process in running:
                    process.kill()
            raise
    if failed := [(status, lines) for status, lines in done if status != 0]:
        lines = [line for _, lines in failed for line in lines]
        errors = [line for line in lines if any(w in line for w in _ERROR_WORDS)] or lines
        raise CompilerError(name, compiler, failed[0][0], errors)


def _publish(partial: Path, library: Path) -> None:
    """Rename a compiled library to its final name in the cache, then write its hash.

    Without the hash on the disk, the library isn't used.
    """
    digest = file_digest(partial).encode()
    try:
        sync(partial)
        os.replace(partial, library)
        partial.write_bytes(digest)
        sync(partial)
        os.replace(partial, digest_path(library))
        sync(library.parent)
    except OSError as error:
        raise UserError(
            f"can't write {library}: {error.strerror}",
            "free some space, or set PUFFER_MLX_CACHE to a folder elsewhere",
        ) from None


def compiler_hint(cpp: bool = False) -> str:
    """Return the command that installs a C compiler here, such as ``apt install gcc libc6-dev``.

    Args:
        cpp: Install a C++20 compiler and Python's headers instead.
    """
    what = "a C++20 compiler and Python's headers" if cpp else "a C compiler"
    if sys.platform == "darwin":
        return f"install {what}: xcode-select --install"
    distribution = next((word for word in _distribution() if word in _COMMANDS), "")
    command, c, more = _COMMANDS[distribution or "debian"]
    words = f"{command} {(more or c) if cpp else c}"
    if distribution:
        return f"install {what}: {words}"
    return f"install {what} with your system's package manager (Debian: {words})"


def _distribution() -> list[str]:
    """Return the names of this Linux distribution and its relatives, or [] if unknown."""
    try:
        lines = _RELEASE.read_text(errors="replace").splitlines()
    except OSError:
        return []
    fields: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition("=")
        fields[key] = value.strip().strip("\"'")
    words = f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".split()
    return [name for word in words for name in (word, word.partition("-")[0])]
