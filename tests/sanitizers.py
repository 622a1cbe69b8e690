"""C and C++ programs under the compiler's sanitizers, compiled once and kept like environments."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from kept import compile_program
from native_envs import GROUP, folder_of, parameters

from puffer_mlx.errors import UserError
from puffer_mlx.system.compiler import source_files
from puffer_mlx.vec.native.c_functions import text_of_parameter
from puffer_mlx.vec.native.compiling import compiled_unit, environment_flags
from puffer_mlx.vec.native.sources import environment_files, environments_folder

SANITIZERS = {"memory": "address,undefined", "threads": "thread"}
C = Path(__file__).parent / "c"
ENVIRONMENT = ("-std=gnu11", "-ffp-contract=off", "-Drand_r=puffer_rand_r")


def program(
    name: str,
    sources: Sequence[Path],
    flags: Sequence[str],
    depends: Iterable[Path],
    sanitizer: str = "",
    compiler: str = "cc",
    include: Sequence[Path] = (),
) -> Path:
    """Compile a C program with one of SANITIZERS, or none; skip if the compiler lacks it."""
    checks = []
    if sanitizer:
        checks = [f"-fsanitize={SANITIZERS[sanitizer]}", "-fno-sanitize-recover=all"]
    try:
        return compile_program(
            name, sources, ["-O1", "-g", "-pthread", *checks, *flags], compiler, depends, include
        )
    except UserError as error:
        if "cannot find" in error.message and "san" in error.message:
            pytest.skip(f"the compiler has no {checks[0]}")
        raise


def sanitized(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program that was compiled with a sanitizer; return the finished process."""
    environment = {
        **os.environ,
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1",  # what comes after a race may never end
    }

    def start(words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=100)

    done = start(command)
    if "unexpected memory mapping" in done.stderr and shutil.which("setarch"):
        # ThreadSanitizer of older compilers can't live with much address randomisation.
        done = start(["setarch", "-R", *command])
    return done


def environment_driver(
    folder: Path, sanitizer: str, root: Path | None = None, flags: Sequence[str] = ENVIRONMENT
) -> Path:
    """Compile tests/c/driver.c with a C environment; return the program's path.

    Args:
        folder: Folder of the environment.
        sanitizer: One of SANITIZERS, or "" for none.
        root: Folder with ``include`` and ``src``; None for the package's ``envs``.
        flags: Compiler flags.
    """
    root = root or environments_folder()
    include = [root / "include", root / "src"]
    sources = [C / "driver.c", *sorted(include[1].glob("*.c"))]
    headers = [path for each in include for path in source_files(each)]
    if flags == ENVIRONMENT:  # then all but the environment is compiled once for all of them
        given = [*flags, "-r"], headers, sanitizer, "cc", include
        sources, flags = [], [*flags, str(program("driver", sources, *given))]
    sources, headers = [compiled_unit(folder), *sources], [*environment_files(folder), *headers]
    name, flags = f"driver_{folder.name}", [*flags, "-lm"]
    return program(name, sources, flags, headers, sanitizer, "cc", include)


def run_upstream(name: str, sanitizer: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Step an upstream C environment 2,000 times in the test driver; return its output."""
    monkeypatch.setenv("RAYLIB_PATH", "none")
    optimised = ("-O3", "-DNDEBUG", "-fvisibility=hidden", "-lm")
    flags = [flag for flag in environment_flags(folder_of(name)) if flag not in optimised]
    driver = environment_driver(folder_of(name), sanitizer, flags=flags)
    done = run_environment(driver, name, 2000)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    assert "episodes 0" not in done.stdout
    return done.stdout


def run_environment(driver: Path, name: str, steps: int) -> subprocess.CompletedProcess[str]:
    keys = [f"{key}={text_of_parameter(value)}" for key, value in parameters(name).items()]
    return sanitized([str(driver), str(4 * GROUP), "4", "3", str(steps), *keys])
