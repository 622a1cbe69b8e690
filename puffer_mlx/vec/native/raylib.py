"""Find an installed raylib, the graphics library of PufferLib's environments.

Training doesn't need raylib. Without it, environments are compiled with the empty functions of
``envs/include/raylib``.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.errors import UserError

PATH_VARIABLE = "RAYLIB_PATH"
INSTALL_HINT = (
    "install raylib 5.5 (macOS: brew install raylib; Linux: your distribution's package or a"
    f" release from github.com/raysan5/raylib) or set {PATH_VARIABLE} to its folder"
)
_SYSTEM_PREFIXES = ("/opt/homebrew", "/usr/local", "/usr")
_LIBRARY_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
_STATIC_LIBRARIES = (  # libraries that a static libraylib.a needs
    [word for name in ("Cocoa", "IOKit", "CoreVideo", "OpenGL") for word in ("-framework", name)]
    if sys.platform == "darwin"
    else ["-lGL", "-lX11", "-lm", "-lpthread", "-ldl", "-lrt"]
)
_VERSION = re.compile(r"^\s*#\s*define\s+RAYLIB_VERSION\s+\"([^\"]+)\"", re.MULTILINE)


class Raylib(NamedTuple):
    """An installed raylib, the library in which environments draw: its version, header and file."""

    version: str
    header: Path
    library: Path

    def flags(self) -> list[str]:
        """Return the compiler and linker flags that link this raylib."""
        include = f"-I{self.header.parent}"
        if self.library.suffix == ".a":
            return [include, os.fspath(self.library), *_STATIC_LIBRARIES]
        folder = self.library.parent
        return [include, f"-L{folder}", "-lraylib", f"-Wl,-rpath,{folder}"]


def find_raylib(folders: Iterable[Path] = ()) -> Raylib | None:
    """Find an installed raylib. Returns None without one, or when it is disabled.

    The search order is:

    1. ``$RAYLIB_PATH``, a folder with ``include`` and ``lib``; ``none`` disables raylib;
    2. folders ``raylib*`` in ``folders``, where PufferLib's build.sh unpacks raylib;
    3. ``pkg-config``;
    4. the prefixes of Homebrew and of the system.

    Raises:
        UserError: ``$RAYLIB_PATH`` is set, but has no raylib.
    """
    path = os.environ.get(PATH_VARIABLE)
    if path:
        raylib = None if path == "none" else _in_prefix(Path(path).expanduser())
        if raylib is None and path != "none":
            raise UserError(
                f"{PATH_VARIABLE} is {path}, where there is no raylib: include/raylib.h and"
                f" lib/libraylib{_LIBRARY_SUFFIX} or .a",
                f"correct it, unset it, or set {PATH_VARIABLE}=none to use no raylib",
            )
        return raylib
    unpacked = (path for folder in folders for path in sorted(folder.glob("raylib*")))
    for prefix in unpacked:
        if raylib := _in_prefix(prefix):
            return raylib
    if raylib := _from_pkg_config():
        return raylib
    for prefix in _SYSTEM_PREFIXES:
        if raylib := _in_prefix(Path(prefix)):
            return raylib
    return None


def _in_prefix(prefix: Path) -> Raylib | None:
    """Return the raylib installed under a prefix or in a built checkout's src, or None."""
    for include, libraries in (("include", ("lib", "lib64")), ("src", ("src",))):
        if raylib := _in_folders(prefix / include, [prefix / name for name in libraries]):
            return raylib
    return None


def _in_folders(include: Path, folders: list[Path]) -> Raylib | None:
    """Return the raylib with its header in ``include`` and a library in ``folders``, or None."""
    header = include / "raylib.h"
    if not header.is_file():
        return None
    names = [f"libraylib{suffix}" for suffix in (_LIBRARY_SUFFIX, ".a")]
    for library in (folder / name for name in names for folder in folders):
        if library.is_file():
            match = _VERSION.search(header.read_text(errors="replace"))
            return Raylib(match[1] if match else "of unknown version", header, library)
    return None


def _from_pkg_config() -> Raylib | None:
    """Return the installed raylib that the tool ``pkg-config`` finds, or None."""
    folders = []
    for variable in ("includedir", "libdir"):
        try:
            done = subprocess.run(
                ["pkg-config", f"--variable={variable}", "raylib"], capture_output=True, text=True
            )
        except OSError:
            return None
        if done.returncode or not done.stdout.strip():
            return None
        folders.append(Path(done.stdout.strip()))
    include, library_folder = folders
    return _in_folders(include, [library_folder])
