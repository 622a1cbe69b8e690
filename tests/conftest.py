"""Imported before any test module."""

import gc
import signal
from pathlib import Path

import pytest

import puffer_mlx  # noqa: F401  before MLX, so that every test runs on the BLAS that users get

# isort: split
import mlx.core as mx

from puffer_mlx.cli import train
from puffer_mlx.ops import cpu_extension
from puffer_mlx.system.blas import take_over_gemm

pytest.register_assert_rewrite(
    "emulated_gpu", "kernel_oracles", "native_contract", "oracles", "running"
)
mx.set_default_device(mx.cpu)  # tests of a GPU say so themselves
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell's background jobs inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was imported stays: no collection of garbage, also those of tests, walks it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def data(tmp_path_factory):
    """What tests name on command lines isn't remembered for this machine's user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUFFER_MLX_DATA", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The folder of upstream's own numbers; tests/data/README.md says what they are."""
    return Path(__file__).parent / "data" / "upstream"


@pytest.fixture(params=["fused", "pure"])
def path(request, monkeypatch):
    """Both ways to compute a fused operation on a CPU: the extension, and plain MLX."""
    if request.param == "pure":
        monkeypatch.setattr(cpu_extension, "load", lambda: None)
    elif cpu_extension.load() is None:
        pytest.skip("the extension can't be built here")
    return request.param


@pytest.fixture
def extension():
    """The CPU extension, its threads afterwards as they were."""
    module = cpu_extension.load()
    if module is None:
        pytest.skip("the extension can't be built here")
    yield module
    module.set_threads(cpu_extension.threads())


@pytest.fixture(params=["split", "whole", "MLX's", "pure"])
def products(request, monkeypatch):
    """The ways to multiply matrices on a CPU, for tests in which products matter.

    The extension's, in rows on its threads (OpenBLAS: Linux) or by one call (Accelerate: a Mac);
    MLX's beside the extension, where that has no BLAS; and plain MLX.
    """
    if request.param == "pure":
        monkeypatch.setattr(cpu_extension, "load", lambda: None)
        yield request.param
        return
    extension, found = cpu_extension.load(), take_over_gemm()
    if extension is None or not found.address:
        pytest.skip("the extension can't be built here, or has no BLAS")
    extension.set_gemm(found.address if request.param != "MLX's" else 0, request.param == "split")
    yield request.param
    extension.set_gemm(found.address, found.split)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def script():
    """scripts/train.py in this process, and nothing of it left behind."""
    device = mx.default_device()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield train
    mx.set_default_device(device)
    for number, handler in handlers.items():
        signal.signal(number, handler)
