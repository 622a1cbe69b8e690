"""Environments and the extension compile for macOS with PyPI's ``ziglang``; no test runs them.

A slow test also downloads MLX's wheels.
"""

import importlib.metadata
import importlib.util
import platform
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kept import compile_program

from puffer_mlx.ops import cpu_extension
from puffer_mlx.system import mac
from puffer_mlx.system.private_folders import cache_directory
from puffer_mlx.vec.native.compiling import compile_environment

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = sorted(path.parent.name for path in (ROOT / "envs").glob("*/binding.c"))
DYLIB = 6  # file type in a Mach-O header: dynamic library
ARM64 = 0x0100000C  # CPU type in a Mach-O header

pytestmark = [
    pytest.mark.skipif(sys.platform == "darwin", reason="a Mac compiles them anyway"),
    pytest.mark.skipif(not importlib.util.find_spec("ziglang"), reason="ziglang isn't installed"),
]


@pytest.fixture(scope="module")
def zig(tmp_path_factory) -> Iterator[Path]:
    """Let $CC and $CXX cross-compile for macOS 14 with zig. Yields the working directory."""
    cache = cache_directory() / "zig"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR", "PUFFER_MLX_CACHE"):
            patch.setenv(name, str(cache / name))
        for name, tool in (("CC", "cc -Werror"), ("CXX", "c++")):
            patch.setenv(name, f"'{sys.executable}' -m ziglang {tool} -target aarch64-macos.14.0")
        folder = tmp_path_factory.mktemp("zig")
        patch.chdir(folder)  # zig leaves an empty a.o where it works
        yield folder


class Object:
    """Reads a Mach-O file (macOS): its type, and the symbols it defines or imports."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        magic, self.machine, _, self.kind, commands = struct.unpack_from("<5I", data)
        assert magic == 0xFEEDFACF
        self.defined: set[str] = set()
        self.needed: set[str] = set()
        at = 32
        for _ in range(commands):
            command, size = struct.unpack_from("<2I", data, at)
            if command == 2:  # LC_SYMTAB
                self._read(data, *struct.unpack_from("<4I", data, at + 8))
            at += size

    def _read(self, data: bytes, symbols: int, count: int, strings: int, _: int) -> None:
        for i in range(count):
            name, kind = struct.unpack_from("<IB", data, symbols + 16 * i)
            if kind & 0xE0 or not kind & 1:  # a debugging symbol, or a local one
                continue
            start = strings + name
            text = data[start : data.index(b"\0", start)].decode()
            (self.needed if kind & 0x0E == 0 else self.defined).add(text)


def test_environments_compile_without_a_warning(zig):
    native = (ROOT / "puffer_mlx/vec/native").glob("*.py")
    calls = {f"_{c}" for p in native for c in re.findall(r"library\.(puffer_\w+)", p.read_text())}
    assert len(calls) > 10
    for name in ENVIRONMENTS:
        found = Object(compile_environment(ROOT / "envs" / name))
        assert calls <= found.defined, name
        assert (found.machine, found.kind) == (ARM64, DYLIB)


def python_headers() -> Path:
    """Return a folder with Python's headers, in which ``pyconfig.h`` is this machine's.

    Debian's ``pyconfig.h`` includes another one by the compiler's target, and has none for macOS.
    """
    include = Path(sysconfig.get_paths()["include"])
    if "multiarch" not in (include / "pyconfig.h").read_text():
        return include
    triplet = sysconfig.get_config_var("MULTIARCH")
    copy = cache_directory() / "python" / include.name
    shutil.copytree(include, copy, dirs_exist_ok=True)
    shutil.copy(include.parent / triplet / include.name / "pyconfig.h", copy)
    return copy


def compiler_flags(monkeypatch) -> list[str]:
    """Return the compiler flags that the CPU extension gets on a Mac."""
    headers = {"include": str(python_headers())}
    with monkeypatch.context() as patch:
        patch.setattr(platform, "system", lambda: "Darwin")
        patch.setattr(sysconfig, "get_paths", lambda: headers)
        return cpu_extension.compiler_flags()


def compile_source(source: Path, flags: list[str]) -> Path:
    """Cross-compile a source of the CPU extension; return the cached object file."""
    depends = cpu_extension.extension_headers()
    include = [cpu_extension.PACKAGE]
    return compile_program(f"mac_{source.stem}", [source], flags, "c++", depends, include)


def without_linker(flags: list[str]) -> list[str]:
    linkers = ("-L", "-l", "-Wl", "-undefined", "dynamic_lookup")
    return [flag for flag in flags if not flag.startswith(linkers)]


def test_extension_compiles_without_a_warning(zig, monkeypatch):
    flags = without_linker(compiler_flags(monkeypatch))
    strict = [*flags, "-O0", "-Wall", "-Werror", "-c"]
    found = [Object(compile_source(source, strict)) for source in cpu_extension.write_sources(zig)]
    assert {part.machine for part in found} == {ARM64}
    assert "_PyInit_cpu_ops" in found[-1].defined
    assert all(any("mlx4core" in name for name in part.needed) for part in found)


# ---- against MLX's wheels for macOS --------------------------------------------------------------


def nanobind_tags(path: Path) -> set[bytes]:
    """Return the nanobind ABI tags in an extension's file.

    Extensions share objects if these are equal.
    """
    return set(re.findall(rb"nanobind_\w+_a\d+_v\d+\w*", path.read_bytes()))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_extension_links_with_mlxs_wheel(zig, monkeypatch, tmp_path):
    """This test takes minutes: it downloads 45 MB, and compiles libc++."""
    version = importlib.metadata.version("mlx")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path]
    command += ["--python-version", python, "--platform", "macosx_14_0_arm64", "--only-binary"]
    command += [":all:", f"mlx=={version}", f"mlx-metal=={version}"]
    subprocess.run(command, check=True)
    for wheel in tmp_path.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(tmp_path)
    package = tmp_path / "mlx"
    (core,) = package.glob("core.*-darwin.so")
    library = package / "lib" / "libmlx.dylib"

    monkeypatch.setattr(cpu_extension.mx, "__file__", str(core))
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    extension = cpu_extension.compile_extension()

    ours, theirs = Object(extension), Object(library)
    wanted = {name for name in ours.needed if "mlx4core" in name}
    assert (ours.machine, ours.kind) == (ARM64, DYLIB) and "_PyInit_cpu_ops" in ours.defined
    assert len(wanted) > 10 and wanted <= theirs.defined
    assert nanobind_tags(extension) == nanobind_tags(core) and len(nanobind_tags(core)) == 1
    # as system/mac.py expects
    assert f"_{mac._SGEMM[0]}" in theirs.needed
    text = library.read_bytes()
    assert all(name.encode() in text for name in mac.COMMAND_BUFFERS)
