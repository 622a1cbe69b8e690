"""Compiled libraries: one for the same input, on the disk before it is used, again if damaged."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT

from puffer_mlx.errors import UserError
from puffer_mlx.system import compiler


def fake(source: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Make a shell script the C compiler, $CC."""
    script = source.with_name("cc")
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a C file with one function, and set an empty cache; return the file."""
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "one.c"
    path.write_text("int one(void) { return 1; }\n")
    return path


def compile_one(source: Path, **how) -> Path:
    return compiler.compile_shared("one", [source], [], **how)


def returned(library: Path) -> int:
    return ctypes.CDLL(str(library)).one()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-500] + bytes([data[-500] ^ 1]) + data[-499:],
    ],
    ids=["cut off", "one bit"],
)
def test_damaged_library_is_compiled_again(source: Path, damage):
    """Loading a library that is cut off ends the process by SIGBUS."""
    library = compile_one(source)
    whole = library.read_bytes()
    library.write_bytes(damage(whole))
    assert compile_one(source) == library and library.read_bytes() == whole


def test_library_without_its_digest_is_compiled_again(source: Path):
    """The machine went down between the two."""
    library = compile_one(source)
    (digest_path,) = library.parent.glob(".*")
    digest_path.unlink()
    library.write_bytes(b"")
    assert returned(compile_one(source)) == 1 and digest_path.exists()


def test_contents_of_headers_decide_and_not_their_folder(source: Path, tmp_path: Path):
    source.write_text('#include "part.h"\nint one(void) { return PART; }\n')
    libraries = {}
    for folder, number in (("here", 1), ("copy", 1), ("other", 2)):
        header = tmp_path / folder / "part.h"
        header.parent.mkdir()
        header.write_text(f"#define PART {number}\n")
        libraries[folder] = compile_one(source, depends=[header], include=[header.parent])
    assert libraries["here"] == libraries["copy"] != libraries["other"]
    assert [returned(library) for library in libraries.values()] == [1, 1, 2]


def test_library_that_does_not_load_is_compiled_again_once(source: Path):
    """It may be of a machine with another C library."""
    compiled: list[bool] = []
    loads = iter([OSError("version `GLIBC_9' not found"), None])

    def make(again: bool = False) -> Path:
        compiled.append(again)
        return compile_one(source, again=again)

    def load(path: Path) -> int:
        if error := next(loads):
            raise error
        return returned(path)

    compile_one(source)
    compiler._compiled_now.clear()  # as if another process had compiled it
    assert compiler.load_compiled(make, load) == 1 and compiled == [False, True]

    loads, compiled = iter([ImportError("no such symbol")]), []
    with pytest.raises(ImportError):
        compiler.load_compiled(make, load)
    assert compiled == [False]


# ---- several sources ----------------------------------------------------------------------------


def two_sources(source: Path, second: str) -> list[Path]:
    other = source.with_name("two.c")
    other.write_text(second)
    source.write_text("int two(void); int one(void) { return two(); }\n")
    return [source, other]


def test_several_sources_become_one_library_for_each_set_of_flags(source: Path):
    sources = two_sources(source, "int two(void) { return NUMBER; }\n")
    own = {sources[1]: ["-UNUMBER", "-DNUMBER=2"]}
    made = [
        compiler.compile_shared("one", sources, [f"-DNUMBER={number}"], source_flags=further)
        for number, further in ((1, {}), (1, own), (3, {}))
    ]
    assert [returned(library) for library in made] == [1, 2, 3]
    assert sorted(made[0].parent.glob("[!.]*")) == sorted(made)


def test_error_of_the_second_source_is_shown(source: Path):
    sources = two_sources(source, "int two(void) { return missing; }\n")
    with pytest.raises(UserError, match=r"(?s)one: cc failed with status 1:.*two\.c.*missing"):
        compiler.compile_shared("one", sources, [])
    assert not [*compiler.cache_directory().iterdir()]


def test_library_that_four_processes_need_is_compiled_once(source: Path, monkeypatch):
    calls = source.with_name("calls")
    slow = f'case " $* " in *" -shared "*) echo >> {calls}; sleep 0.5;; esac\nexec cc "$@"'
    fake(source, monkeypatch, slow)
    code = f"""
from pathlib import Path
from puffer_mlx.system.compiler import compile_shared
print(compile_shared("one", [Path({str(source)!r})], []))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PUFFER_MLX_NO_CPU_OPS": "1"}
    # the BLAS's shim is there before: it is compiled by the import
    subprocess.run([sys.executable, "-c", "import puffer_mlx"], env=environment, check=True)
    calls.unlink(missing_ok=True)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    said = {process.communicate()[0] for process in processes}
    assert {process.returncode for process in processes} == {0} and len(said) == 1
    assert calls.read_text() == "\n"
    assert not [*compiler.cache_directory().glob(".*.lock")]


# ---- messages -----------------------------------------------------------------------------------


def test_long_compilation_is_announced_and_timed(source: Path, monkeypatch, capsys):
    monkeypatch.setattr(compiler, "NOTICE_SECONDS", 0.0)
    compile_one(source, duration="half a minute")
    compile_one(source)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "puffer_mlx: compiling one for the first time, which takes half a minute"
    assert re.fullmatch(r"puffer_mlx: compiling one took \d+ s", last)


@pytest.mark.parametrize(
    ("platform", "release", "c", "cpp"),
    [
        ("darwin", "", "xcode-select --install", "xcode-select --install"),
        ("linux", 'ID=linuxmint\nID_LIKE="ubuntu debian"\n', "apt install", "g++ python3-dev"),
        ("linux", 'ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', "zypper", "zypper"),
        ("linux", None, "your system's package manager", "Python's headers"),
    ],
    ids=["macOS", "Mint", "SUSE", "unknown"],
)
def test_hint_installs_a_compiler_of_the_system(
    tmp_path: Path, monkeypatch, platform, release, c, cpp
):
    path = tmp_path / "os-release"
    if release is not None:
        path.write_text(release)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(compiler, "_RELEASE", path)
    assert c in compiler.compiler_hint() and cpp in compiler.compiler_hint(cpp=True)


def test_error_of_macos_cc_without_xcode_has_its_hint(source: Path, monkeypatch):
    fake(source, monkeypatch, "echo 'xcrun: error: invalid active developer path' >&2\nexit 1")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="invalid active developer path") as caught:
        compile_one(source)
    assert "xcode-select --install" in caught.value.hint and "or set CC" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "variable", "text", "problem"),
    [
        ("cc", "CC", "gcc '", "No closing quotation"),
        ("c++", "CXX", " ", "it names no compiler"),
    ],
)
def test_variable_without_a_command_is_named(source, monkeypatch, kind, variable, text, problem):
    monkeypatch.setenv(variable, text)
    with pytest.raises(UserError) as caught:
        compile_one(source, compiler=kind)
    assert caught.value.message == f"the environment variable {variable} is {text!r}: {problem}"
    assert caught.value.hint == f"unset {variable}, or set it to a compiler and its options"


def test_paths_in_flags_need_not_be_utf_8(source, tmp_path):
    flags = [f"-I{tmp_path}/gr\udcf6\udcdfe"]
    assert returned(compiler.compile_shared("one", [source], flags)) == 1
