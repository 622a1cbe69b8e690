"""What only a Mac has, with stand-ins for its C library and for Accelerate: not a Mac's own."""

import ctypes
import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest

from puffer_mlx.ops import cpu_extension
from puffer_mlx.system import blas, mac

LIBC = ctypes.CDLL(None)
NEW, OLD = LIBC.strlen, LIBC.strcmp  # whatever functions, for Accelerate's two


class Library:
    """A C library that knows two numbers, of 32 and of 64 bits."""

    @staticmethod
    def sysctlbyname(name, value, size, new, new_size) -> int:
        assert new is None and new_size.value == 0 and size._obj.value == 8
        known = {b"hw.perflevel0.logicalcpu": (4, 6), b"hw.memsize": (8, 36 << 30)}
        if name not in known:
            return -1
        size._obj.value, number = known[name]
        ctypes.memmove(ctypes.byref(value._obj), number.to_bytes(8, sys.byteorder), size._obj.value)
        return 0


@pytest.fixture
def library():
    return Library


@pytest.fixture
def darwin(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")


def address(function) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def test_numbers_of_the_kernel(library):
    assert mac.sysctl("hw.perflevel0.logicalcpu", library) == 6
    assert mac.sysctl("hw.memsize", library) == 36 << 30
    assert mac.sysctl("hw.perflevel9.logicalcpu", library) is None


def test_only_fast_cores_count(library, darwin, monkeypatch):
    assert mac.performance_cores(library) == 6
    monkeypatch.delattr(cpu_extension.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(cpu_extension.os, "cpu_count", lambda: 10)
    for found, expected in ((6, 6), (None, 10), (0, 10)):  # a Mac with Intel's cores has one kind
        monkeypatch.setattr(mac, "sysctl", lambda name, library=None, found=found: found)
        assert cpu_extension.threads() == expected


def test_accelerates_product():
    opened, new, old = [], "cblas_sgemm$NEWLAPACK", "cblas_sgemm"

    def load(**functions):
        return lambda path: opened.append(path) or SimpleNamespace(**functions)

    assert mac.accelerate_gemm(load(**{new: NEW, old: OLD})) == address(NEW) != address(OLD)
    assert opened == ["/System/Library/Frameworks/Accelerate.framework/Accelerate"]
    assert mac.accelerate_gemm(load(**{old: OLD})) == address(OLD)
    assert mac.accelerate_gemm(load()) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="where nothing of a Mac is there")
def test_elsewhere():
    """Cores are those that are allowed, command buffers stay, and there is no Accelerate."""
    assert mac.accelerate_gemm() == 0 and mac.performance_cores() is None
    assert cpu_extension.threads() == len(cpu_extension.os.sched_getaffinity(0))
    environment: dict[str, str] = {}
    mac.set_command_buffers(environment)
    assert environment == {}


@pytest.mark.parametrize("found", [0, 4096])
def test_on_a_mac_the_extension_takes_it_and_does_not_split(darwin, monkeypatch, found):
    calls = []
    monkeypatch.setattr(mac, "accelerate_gemm", lambda: found)
    monkeypatch.setattr(blas, "set_blas_threads", lambda threads: calls.append("threads"))
    assert blas.take_over_gemm() == (found, False)

    class Extension:
        def __getattr__(self, name: str):
            return lambda *arguments: calls.append((name, *arguments))

    monkeypatch.setattr(cpu_extension, "_build", Extension)
    assert isinstance(cpu_extension._load.__wrapped__(), Extension)
    assert [call for call in calls if call[0] == "set_gemm"] == [("set_gemm", 4096, False)] * (
        found > 0
    )
    assert "threads" not in calls


def test_command_buffers_hold_more_where_there_is_memory(darwin, monkeypatch):
    for memory, before, expected in [
        (8 << 30, {}, {}),
        (None, {}, {}),
        (16 << 30, {}, {"MLX_MAX_OPS_PER_BUFFER": "200", "MLX_MAX_MB_PER_BUFFER": "400"}),
        (
            64 << 30,
            {"MLX_MAX_OPS_PER_BUFFER": "7", "OTHER": "1"},
            {"MLX_MAX_OPS_PER_BUFFER": "7", "MLX_MAX_MB_PER_BUFFER": "400", "OTHER": "1"},
        ),
    ]:
        monkeypatch.setattr(mac, "sysctl", lambda name, library=None, memory=memory: memory)
        mac.set_command_buffers(before)
        assert before == expected


IMPORTED = """
import importlib, os, platform, sys
import puffer_mlx
from puffer_mlx.system import mac

platform.system = lambda: "Darwin"
mac.sysctl = lambda name, library=None: 16 << 30
importlib.reload(puffer_mlx)
print({"mlx.core", "numpy"} & set(sys.modules), os.environ["MLX_MAX_OPS_PER_BUFFER"])
"""


def test_tests_compute_on_the_cpu(monkeypatch):
    """Where MLX has a GPU that is its default device, and a test that is about one asks for it."""
    chosen = []
    monkeypatch.setattr(mx, "set_default_device", chosen.append)
    path = Path(__file__).parents[1] / "conftest.py"
    spec = importlib.util.spec_from_file_location("conftest_again", path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert chosen == [mx.cpu]


def test_importing_the_package_sets_them_before_mlx_loads():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED],
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "set() 200\n", done.stderr
