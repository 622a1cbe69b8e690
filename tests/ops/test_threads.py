"""The CPU extension's pool and stream limits under sanitizers: tests/c/pool.cpp, without MLX.

One test plants bugs, to show that the others would see them.
"""

import subprocess
from pathlib import Path

import pytest
from kept import edit, kept_copy
from sanitizers import SANITIZERS, C, program, sanitized

import puffer_mlx
from puffer_mlx.system.compiler import source_files

HEADERS = Path(puffer_mlx.__file__).parent / "ops" / "cpu"


def driver(headers: Path, sanitizer: str) -> Path:
    flags = ["-std=c++20", f"-I{headers}"]
    return program("pool", [C / "pool.cpp"], flags, source_files(headers), sanitizer, "c++")


def run_driver(program: Path, batches: int, patience: int = 60) -> subprocess.CompletedProcess:
    return sanitized([str(program), "5", str(batches), str(patience)])


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_driver_has_no_race_or_leak(sanitizer: str):
    done = run_driver(driver(HEADERS, sanitizer), 2000)
    assert (done.returncode, done.stdout, done.stderr) == (0, "clean\n", "")


BUGS = {  # sanitizer or none, file, text, its replacement, part of the report
    "a batch ends before its helpers": (
        "threads",
        "threads.h",
        "    batch.left.wait(lock, [&batch] { return batch.inside == 0; });\n",
        "",
        "",
    ),
    "one helper too many": (
        "",
        "threads.h",
        "width) - 1;",
        "width) - (width < 2);",
        "more threads than the width",
    ),
    "exceptions are forgotten": (
        "",
        "threads.h",
        "if (batch.error) std::rethrow_exception(batch.error);",
        "",
        "an exception was lost",
    ),
    "one operation too many": (
        "",
        "stream_limits.h",
        "in_flight_ < max_in_flight_",
        "in_flight_ <= max_in_flight_",
        "too many under way",
    ),
    "operations are counted without a lock": (
        "threads",
        "stream_limits.h",
        "std::lock_guard<std::mutex> lock(limits_->mutex_);",
        "",
        "ThreadSanitizer",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_driver_finds_planted_bug(bug: str):
    sanitizer, file, old, new, report = BUGS[bug]
    faulty = driver(kept_copy(HEADERS, lambda folder: edit(folder / file, old, new)), sanitizer)
    for _ in range(20):  # a race needs its moment: on an idle machine a run may pass without it
        done = run_driver(faulty, 20000, patience=1)
        if done.returncode:
            break
    assert done.returncode != 0 and report in done.stderr, done.stdout + done.stderr
