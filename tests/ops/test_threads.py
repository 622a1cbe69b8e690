"""The CPU extension's pool and stream limits under sanitizers: tests/c/pool.cpp, without MLX."""

from pathlib import Path

import pytest
from sanitizers import SANITIZERS, C, program, sanitized

import puffer_mlx
from puffer_mlx.system.compiler import source_files

HEADERS = Path(puffer_mlx.__file__).parent / "ops" / "cpu"


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_have_no_race_or_leak(sanitizer: str):
    flags = ["-std=c++20", f"-I{HEADERS}"]
    headers = source_files(HEADERS)
    driver = program("pool", [C / "pool.cpp"], flags, headers, sanitizer, "c++")
    done = sanitized([str(driver), "5", "2000", "60"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "clean\n", "")
