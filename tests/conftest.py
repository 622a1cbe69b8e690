"""Imported before any test module."""

import ctypes
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# torch's threads spin while they wait: on a busy machine its tests took 30 s of CPU, not 5.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import puffer_mlx  # noqa: F401  before MLX, so that every test runs on the BLAS that users get

# isort: split
import mlx.core as mx

from puffer_mlx.cli import train
from puffer_mlx.ops import cpu_extension
from puffer_mlx.system.blas import take_over_gemm
from puffer_mlx.system.files import shipped_folder
from puffer_mlx.tracking import tracked_run

pytest.register_assert_rewrite(
    "emulated_run", "kernel_oracles", "native_envs", "oracles", "played", "running", "stepping"
)
mx.set_default_device(mx.cpu)  # tests of a GPU say so themselves
settings.register_profile("tests", deadline=None, derandomize=True)  # the same on any machine
settings.load_profile("tests")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell's background jobs inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # as nohup's jobs inherit it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# ---- the fast tier: in this process, a minute in all ---------------------------------------------

FAST_ROOMS = {"checkpoint", "config", "display", "environments", "ops", "policy", "ppo"}
FAST_ROOMS |= {"profiling", "rollout", "tracking", "vec"}
WHOLE = """
    acting_on_gpu closed_form gpu_front_ends gym gym_faults native native_ends
    normalize notebook precision puffer raylib sanitizers threads tracked_run
    trackers trust upstream_5_envs upstream_envs vec_contract wrapping
"""  # files of these rooms that train, compile, or have the package start processes
COMPILING = {"compiled", "copied"}  # fixtures


def is_fast(item: pytest.Item) -> bool:
    """Return True if a test belongs to the fast tier, by its room, file, fixtures and mark."""
    name = item.path.stem.removeprefix("test_")
    slow = name in WHOLE.split() or item.get_closest_marker("processes")
    fixtures = {*getattr(item, "fixturenames", ())}
    return item.path.parent.name in FAST_ROOMS and not slow and not COMPILING & fixtures


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_fast(item):
            item.add_marker(pytest.mark.fast)


@pytest.fixture(autouse=True)
def starts_no_process(request):
    """Fail a fast test if it starts a process other than a compiler."""
    if request.node.get_closest_marker("fast") is None:
        yield
        return
    real = subprocess.Popen.__init__

    def begin(self, args, *more, **how):
        program = args.split()[0] if isinstance(args, str) else str(args[0])
        if not re.search(r"(cc|\+\+|clang)(-[\d.]+)?$|compiler$|ffmpeg|^uname$|^lscpu$", program):
            pytest.fail(f"a fast test starts {program}: see is_fast in tests/conftest.py")
        real(self, args, *more, **how)

    with pytest.MonkeyPatch.context() as patch:  # not monkeypatch: that would outlive its user
        patch.setattr(subprocess.Popen, "__init__", begin)
        yield


@pytest.fixture(scope="module", autouse=True)
def what_is_there_stays():
    """Exclude everything that is imported so far from garbage collection, to save time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """Return the folder of upstream's recorded results: see tests/data/README.md."""
    return Path(__file__).parent / "data" / "upstream"


@pytest.fixture(params=["fused", "pure"])
def path(request, monkeypatch):
    """Run a test twice: with operations by the CPU extension, and by plain MLX."""
    if request.param == "pure":
        monkeypatch.setattr(cpu_extension, "load_extension", lambda: None)
    elif cpu_extension.load_extension() is None:
        pytest.skip("the extension can't be built here")
    return request.param


@pytest.fixture
def extension():
    """Return the CPU extension, and restore its number of threads afterwards."""
    module = cpu_extension.load_extension()
    if module is None:
        pytest.skip("the extension can't be built here")
    yield module
    module.set_threads(cpu_extension.count_cores())


@pytest.fixture(params=["split", "whole", "MLX's", "pure"])
def products(request, monkeypatch):
    """Run a test with each implementation of matrix products on a CPU.

    The extension's, in rows on its threads (OpenBLAS: Linux) or by one call (Accelerate: a Mac);
    MLX's beside the extension, where that has no BLAS; and plain MLX.
    """
    if request.param == "pure":
        monkeypatch.setattr(cpu_extension, "load_extension", lambda: None)
        yield request.param
        return
    extension, found = cpu_extension.load_extension(), take_over_gemm()
    if extension is None or not found.address:
        pytest.skip("the extension can't be built here, or has no BLAS")
    extension.set_gemm(found.address if request.param != "MLX's" else 0, request.param == "split")
    yield request.param
    extension.set_gemm(found.address, found.split)


@pytest.fixture
def uncompiled():
    """Disable compilation by MLX, which takes seconds in each thread."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture
def tracked_records(here, monkeypatch):
    """Return a function that returns what the tracker in tests/tracking/faulty recorded."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "tracking" / "faulty"))
    records = here / "tracked_records"
    monkeypatch.setenv("TRACKER_RECORDS", str(records))
    monkeypatch.setattr(tracked_run, "QUIET_WAIT", 30)  # no line about waiting on a busy machine

    def lines():
        text = records.read_text() if records.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    return lines


@pytest.fixture
def permissions() -> Iterator[None]:
    """Enforce file permissions in this thread, even for root."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root may write everywhere")
    c, header = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522, 0)
    before, without = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()  # effective ones are first
    assert c.capget(header, before) == 0
    without[:] = before[:]
    without[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert c.capset(header, without) == 0
    yield
    assert c.capset(header, before) == 0


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Change to an empty working directory. Modules imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def shipped_configs(tmp_path, monkeypatch):
    """Replace the package's configuration files by a copy that a test may change."""
    copy = tmp_path / "package" / "configs"
    shutil.copytree(shipped_folder("configs"), copy)
    monkeypatch.setattr("puffer_mlx.config.finding.shipped_folder", copy.with_name)
    return copy


@pytest.fixture
def script():
    """Return the module of the train command, to run in this process; undo its changes later."""
    device = mx.default_device()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield train
    mx.set_default_device(device)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def scripts():
    """Return a function that returns a command's module by name, to run in this process."""
    from running import cli  # not before its assertions are rewritten

    device = mx.default_device()
    yield cli
    mx.set_default_device(device)
