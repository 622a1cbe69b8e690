"""Code for Macs, with stand-ins for macOS's C library and for Accelerate."""

import ctypes
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from puffer_mlx.ops import cpu_extension
from puffer_mlx.system import mac

LIBC = ctypes.CDLL(None)
NEW, OLD = LIBC.strlen, LIBC.strcmp  # whatever functions, for Accelerate's two


class Library:
    """Stub of macOS's C library, whose sysctl knows two numbers."""

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
def darwin(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")


def address(function) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def test_sysctl_reads_numbers_of_32_and_64_bits(darwin):
    assert mac.sysctl("hw.perflevel0.logicalcpu", Library) == 6 == mac.performance_cores(Library)
    assert mac.sysctl("hw.memsize", Library) == 36 << 30
    assert mac.sysctl("hw.perflevel9.logicalcpu", Library) is None


@pytest.mark.parametrize(("found", "expected"), [(6, 6), (None, 10)])
def test_threads_are_the_performance_cores(darwin, monkeypatch, found, expected):
    monkeypatch.delattr(cpu_extension.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(cpu_extension.os, "cpu_count", lambda: 10)
    monkeypatch.setattr(mac, "sysctl", lambda name, library=None: found)
    assert cpu_extension.count_cores() == expected


def test_accelerates_new_function_is_preferred():
    opened, new, old = [], "cblas_sgemm$NEWLAPACK", "cblas_sgemm"

    def load(**functions):
        return lambda path: opened.append(path) or SimpleNamespace(**functions)

    assert mac.accelerate_gemm(load(**{new: NEW, old: OLD})) == address(NEW) != address(OLD)
    assert opened == ["/System/Library/Frameworks/Accelerate.framework/Accelerate"]
    assert mac.accelerate_gemm(load(**{old: OLD})) == address(OLD)
    assert mac.accelerate_gemm(load()) == 0


def test_extension_uses_accelerates_product_undivided(darwin, monkeypatch):
    calls = []
    monkeypatch.setattr(mac, "accelerate_gemm", lambda: 4096)

    class Extension:
        def __getattr__(self, name: str):
            return lambda *arguments: calls.append((name, *arguments))

    monkeypatch.setattr(cpu_extension, "_find_or_compile", Extension)
    assert isinstance(cpu_extension._load.__wrapped__(), Extension)
    assert ("set_gemm", 4096, False) in calls


FULL = {"MLX_MAX_OPS_PER_BUFFER": "200", "MLX_MAX_MB_PER_BUFFER": "400"}


@pytest.mark.parametrize(
    ("memory", "environment", "expected"),
    [
        (8 << 30, {}, {}),
        (16 << 30, {}, FULL),
        (64 << 30, {"MLX_MAX_OPS_PER_BUFFER": "7"}, {**FULL, "MLX_MAX_OPS_PER_BUFFER": "7"}),
    ],
)
def test_command_buffers_hold_more_with_more_memory(
    darwin, monkeypatch, memory, environment, expected
):
    monkeypatch.setattr(mac, "sysctl", lambda name, library=None: memory)
    mac.set_command_buffers(environment)
    assert environment == expected


IMPORTED = """
import importlib, os, platform, sys
import puffer_mlx
from puffer_mlx.system import mac

platform.system = lambda: "Darwin"
mac.sysctl = lambda name, library=None: 16 << 30
importlib.reload(puffer_mlx)
print({"mlx.core", "numpy"} & set(sys.modules), os.environ["MLX_MAX_OPS_PER_BUFFER"])
"""


def test_import_sets_command_buffers_before_mlx_loads():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED],
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "set() 200\n", done.stderr
