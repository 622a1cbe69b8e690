"""Compiled libraries: synced before they count, compiled again when they are damaged."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kept import compile_program, edit, kept_copy
from native_envs import make
from running import ROOT

from puffer_mlx.errors import UserError
from puffer_mlx.system import compiler
from puffer_mlx.vec.native.compiling import compile_environment
from puffer_mlx.vec.native.make import find_environment


def fake(source: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have a shell script be the compiler."""
    script = source.with_name("cc")
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A function that returns 1, and an empty cache."""
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "one.c"
    path.write_text("int one(void) { return 1; }\n")
    return path


def compile_one(source: Path, **how) -> Path:
    return compiler.compile_shared("one", [source], [], **how)


def returned(library: Path) -> int:
    return ctypes.CDLL(str(library)).one()


DAMAGES = {
    "cut off": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "one bit": lambda data: data[:-500] + bytes([data[-500] ^ 1]) + data[-499:],
    "something else": lambda data: b"int one(void) { return 2; }\n",
}


def test_a_damaged_library_is_compiled_again(source: Path):
    """A library that is cut off ends the process that loads it: SIGBUS."""
    library = compile_one(source)
    whole = library.read_bytes()
    for damage in DAMAGES.values():
        library.write_bytes(damage(whole))
        assert compile_one(source) == library and library.read_bytes() == whole
    before = library.stat().st_mtime_ns
    assert compile_one(source) == library and library.stat().st_mtime_ns == before
    (digest_path,) = library.parent.glob(".*")  # of a machine that went down between the two
    digest_path.unlink()
    library.write_bytes(b"")
    assert returned(compile_one(source)) == 1 and digest_path.exists()


def test_a_copy_of_the_headers_compiles_nothing_anew(source: Path, tmp_path: Path):
    """Where headers lie doesn't count: what they say does."""
    source.write_text('#include "part.h"\nint one(void) { return PART; }\n')
    libraries = {}
    for folder, number in (("here", 1), ("copy", 1), ("other", 2)):
        header = tmp_path / folder / "part.h"
        header.parent.mkdir()
        header.write_text(f"#define PART {number}\n")
        libraries[folder] = compile_one(source, depends=[header], include=[header.parent])
    assert libraries["here"] == libraries["copy"] != libraries["other"]
    assert [returned(library) for library in libraries.values()] == [1, 1, 2]


def test_what_is_published_is_on_the_disk_first(source: Path, monkeypatch: pytest.MonkeyPatch):
    done: list[tuple[str, str]] = []
    real_sync, real_replace = os.fsync, os.replace
    paths: dict[int, str] = {}
    real_open = os.open

    def opened(path, *arguments, **keywords):
        handle = real_open(path, *arguments, **keywords)
        paths[handle] = str(path)
        return handle

    def replace(old, new):
        done.append(("rename", str(new)))
        real_replace(old, new)

    def sync(handle):
        done.append(("sync", paths[handle]))
        real_sync(handle)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", sync)
    library = compile_one(source)
    what = [(verb, re.sub(r"\S*\.partial$", "partial", path)) for verb, path in done]
    assert what == [
        ("sync", "partial"),
        ("rename", str(library)),
        ("sync", "partial"),
        ("rename", str(library.with_name(f".{library.name}.sha256"))),
        ("sync", str(library.parent)),
    ]


def test_what_does_not_load_is_compiled_again_once(source: Path):
    """Of a machine with another C library, say; but not what was compiled just now."""
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
    compiler._compiled_now.clear()  # as if another process had
    assert compiler.load_compiled(make, load) == 1 and compiled == [False, True]

    loads, compiled = iter([ImportError("no such symbol")]), []
    with pytest.raises(ImportError):
        compiler.load_compiled(make, load)
    assert compiled == [False]


def test_a_damaged_environment_and_shim_are_compiled_again(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(tmp_path))
    library = compile_environment(find_environment("squared"))
    library.write_bytes(library.read_bytes()[:5000])
    make("squared", total_agents=2).close()
    if sys.platform == "linux":  # macOS uses Accelerate
        code = "from puffer_mlx.system.blas import blas_name; print(blas_name())"
        said = []
        for _ in range(2):
            said.append(subprocess.check_output([sys.executable, "-c", code]))
            for shim in tmp_path.glob("blas_shim*.so"):
                shim.write_bytes(shim.read_bytes()[:3000])
        assert said[0] == said[1]


# ---- several sources ----------------------------------------------------------------------------


def two_sources(source: Path, second: str) -> list[Path]:
    other = source.with_name("two.c")
    other.write_text(second)
    source.write_text("int two(void); int one(void) { return two(); }\n")
    return [source, other]


def test_several_sources_become_one_library(source: Path):
    """Flags decide what it is, those of one source, too."""
    sources = two_sources(source, "int two(void) { return NUMBER; }\n")
    own = {sources[1]: ["-UNUMBER", "-DNUMBER=2"]}
    made = [
        compiler.compile_shared("one", sources, [f"-DNUMBER={number}"], further=further)
        for number, further in ((1, {}), (1, own), (3, {}))
    ]
    assert [returned(library) for library in made] == [1, 2, 3]
    assert sorted(made[0].parent.glob("[!.]*")) == sorted(made)


def test_an_error_of_the_second_source_is_told(source: Path):
    sources = two_sources(source, "int two(void) { return missing; }\n")
    with pytest.raises(UserError, match=r"(?s)one: cc failed with status 1:.*two\.c.*missing"):
        compiler.compile_shared("one", sources, [])
    assert not [*compiler.cache_directory().iterdir()]


def test_sources_are_compiled_at_the_same_time(source: Path, monkeypatch):
    """Each call of this compiler waits until there is another."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    sources = two_sources(source, "int two(void) { return 1; }\n")
    waiting = source.with_name("waiting")
    waiting.mkdir()
    script = f"""case " $* " in *" -c "*)
  mktemp {waiting}/XXXXXX
  for i in $(seq 1000); do [ $(ls {waiting} | wc -l) -gt 1 ] && exec cc "$@"; sleep 0.01; done
  exit 3;;
esac
exec cc "$@"
"""
    fake(source, monkeypatch, script)
    assert returned(compiler.compile_shared("one", sources, [])) == 1


def test_the_same_thing_is_compiled_once(source: Path, monkeypatch):
    """By four processes that begin at the same time: the first ranks of a run, say."""
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


# ---- What is said -------------------------------------------------------------------------------


def test_how_long_it_takes_is_said(source: Path, monkeypatch, capsys):
    monkeypatch.setattr(compiler, "NOTICE_SECONDS", 0.0)
    fake(source, monkeypatch, 'case "$*" in *-shared*) sleep 0.3;; esac\nexec cc "$@"')
    compile_one(source, usually="half a minute")
    compile_one(source)
    first, last = capsys.readouterr().err.splitlines()
    assert first == ("puffer_mlx: compiling one for the first time, which takes half a minute")
    assert re.fullmatch(r"puffer_mlx: compiling one took \d+ s", last)


HINTS = {  # sys.platform, /etc/os-release -> the hints for C and for C++
    "a Mac": ("darwin", "", "xcode-select --install", "xcode-select --install"),
    "Debian": ("linux", "ID=debian\n", "apt install gcc libc6-dev", "apt install g++ python3-dev"),
    "Mint": ("linux", 'ID=linuxmint\nID_LIKE="ubuntu debian"\n', "apt install", "g++ python3-dev"),
    "Fedora": ("linux", "ID=fedora\n", "dnf install gcc", "dnf install gcc-c++ python3-devel"),
    "SUSE": ("linux", 'ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', "zypper", "zypper"),
    "Arch": ("linux", "ID=arch\n", "pacman -S gcc", "pacman -S gcc"),
    "unknown": ("linux", "NAME=Homemade\n", "your system's package manager", "apt install g++"),
    "without a name": ("linux", None, "your system's package manager", "Python's headers"),
}


def test_the_hint_is_the_systems_own(tmp_path: Path, monkeypatch):
    for where, (platform, release, c, cpp) in HINTS.items():
        path = tmp_path / where
        if release is not None:
            path.write_text(release)
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(compiler, "_RELEASE", path)
        assert c in compiler.compiler_hint() and cpp in compiler.compiler_hint(cpp=True)
        if platform == "darwin":
            assert "Debian" not in compiler.compiler_hint(cpp=True)


def test_a_compiler_that_is_not_one_says_why(source: Path, monkeypatch):
    """macOS has a cc that asks for Xcode's tools."""
    fake(source, monkeypatch, "echo 'xcrun: error: invalid active developer path' >&2\nexit 1")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="invalid active developer path") as caught:
        compile_one(source)
    assert "xcode-select --install" in caught.value.hint and "or set CC" in caught.value.hint


# ---- programs -----------------------------------------------------------------------------------


def test_a_program_is_kept_like_a_library(source: Path, tmp_path: Path):
    """Until a header changes; damaged ones are compiled again."""
    header = tmp_path / "two.h"
    header.write_text("#define TWO 2\n")
    source.write_text('#include "two.h"\nint main(void) { return TWO; }\n')

    def compiled() -> Path:
        return compile_program("one", [source], [], depends=[header])

    program = compiled()
    assert subprocess.run([program]).returncode == 2
    before = program.stat().st_mtime_ns
    assert compiled() == program and program.stat().st_mtime_ns == before
    program.write_bytes(b"")
    assert compiled() == program and subprocess.run([program]).returncode == 2
    header.write_text("#define TWO 3\n")
    assert compiled() != program and subprocess.run([compiled()]).returncode == 3


def test_a_library_that_is_not_there_is_named(source: Path):
    with pytest.raises(UserError, match="cannot find -lnowhere"):
        compiler.compile_shared("one", [source], ["-lnowhere"])


def test_a_copy_lies_where_its_contents_say(source: Path):
    """The same change of the same folder is the same copy; one that was altered is made again."""
    folder = source.parent / "folder"
    folder.mkdir()
    (folder / "one.c").write_text("int one;\n")

    def copied(new: str) -> Path:
        return kept_copy(folder, lambda copy: edit(copy / "one.c", "one", new))

    first = copied("two")
    assert first.name == "folder" and (first / "one.c").read_text() == "int two;\n"
    assert copied("two") == first != copied("three")
    (first / "one.c").write_text("int four;\n")
    assert copied("two") == first and (first / "one.c").read_text() == "int two;\n"
    assert (folder / "one.c").read_text() == "int one;\n"
    assert not list(first.parents[1].glob("tmp*"))  # no copy half done


def test_a_call_that_starts_while_others_are_ended_is_ended_too(monkeypatch):
    """Ctrl-C ends what runs; a thread that is just starting a compiler mustn't leave it behind."""
    start, first, late, begun = subprocess.Popen, [], [], []

    def popen(call, **options):
        if call == ["interrupted"]:
            while not (first and begun):
                time.sleep(0.001)
            raise KeyboardInterrupt
        if call == ["late"]:
            begun.append(call)
            while not first or first[0].poll() is None:  # until the running one has been killed
                time.sleep(0.001)
        process = start(["sleep", "60"], **options)
        (late if call == ["late"] else first).append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    with pytest.raises(KeyboardInterrupt):
        compiler._run_all("three", ["cc"], [["interrupted"], ["running"], ["late"]])
    assert [each.returncode for each in first + late] == [-signal.SIGKILL] * 2


@pytest.mark.parametrize(
    ("text", "problem"), [("gcc '", "No closing quotation"), (" ", "it names no compiler")]
)
@pytest.mark.parametrize(("kind", "variable"), [("cc", "CC"), ("c++", "CXX")])
def test_a_variable_that_is_no_command_is_named(source, monkeypatch, kind, variable, text, problem):
    monkeypatch.setenv(variable, text)
    with pytest.raises(UserError) as caught:
        compile_one(source, compiler=kind)
    assert caught.value.message == f"the environment variable {variable} is {text!r}: {problem}"
    assert caught.value.hint == f"unset {variable}, or set it to a compiler and its options"


def test_paths_in_flags_need_not_be_utf_8(source, tmp_path):
    """A checkout, a cache or a temporary folder may lie in an old disk's folder."""
    flags = [f"-I{tmp_path}/gr\udcf6\udcdfe"]
    library = compiler.compile_shared("one", [source], flags)
    assert returned(library) == 1
