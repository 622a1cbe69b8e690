"""Which device computes what, how arrays get from one to the other, and one lock.

MLX's default *device* is one variable of the process, which ``with mx.stream(s)`` sets. Operations
take the device that is the default while they are built, and so do the fused forms
(``ops/implementation.py``). Where two threads build graphs for two devices, each does so while it
holds ``building``; evaluating needs no lock, since a graph knows its streams.
"""

import os
import shutil
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.errors import UserError
from puffer_mlx.system.backend import gpu_backend, stand_in
from puffer_mlx.system.private_folders import cache_directory, refuse_full, temporary

building = threading.RLock()
_pid: int | None = None  # of the process that computes with MLX
CUBIN = ".cubin"  # of a file with a kernel that NVRTC compiled


def select_device(name: str) -> mx.Device:
    """Make ``auto``, ``cpu`` or ``gpu`` MLX's default device and return it.

    Raises:
        UserError: a GPU was asked for, and this MLX has none.
    """
    if name == "gpu" and not has_gpu():
        raise UserError(
            "base.device is gpu, but this build of MLX has no GPU",
            "--device cpu; or on Linux with an NVIDIA GPU: pip install 'puffer-mlx[cuda]'",
        )
    mx.set_default_device(mx.gpu if has_gpu() and name != "cpu" else mx.cpu)
    return mx.default_device()


def refuse_forked() -> None:
    """Refuse to compute in a process that was forked from one that computed with MLX.

    MLX's streams are threads, which a forked process doesn't have: it would wait for them forever.

    Raises:
        UserError: If this is such a process.
    """
    global _pid
    pid = os.getpid()
    if _pid is None:
        _pid = pid
    elif _pid != pid:
        raise UserError(
            "this process was forked from one that has computed with MLX, whose threads it lacks",
            'start it with multiprocessing.get_context("spawn"), or fork before the first policy'
            " or trainer is made",
        )


def kernels_note() -> str:
    """A line for a first start, on which kernels are compiled for this device; else empty.

    Raises:
        UserError: there is no room for them.
    """
    if mx.metal.is_available():
        return ""  # they come with it
    on_gpu = mx.default_device() == mx.gpu
    compiles = on_gpu or shutil.which("g++")  # without g++ there are none
    ours = on_gpu and any(cache_directory().glob(f"*{CUBIN}"))
    if ours or kernels_folder().is_dir() or not compiles:
        return ""
    refuse_full()
    takes = "a few seconds" if on_gpu else "about ten seconds"
    whose = "a GPU's" if on_gpu else "MLX's"
    return f"puffer_mlx: compiling {whose} kernels for the first time, which takes {takes}"


def kernels_folder() -> Path:
    """Where MLX keeps what it compiled for the default device; Metal keeps its kernels itself."""
    on_gpu = mx.default_device() == mx.gpu
    folder = temporary() / "mlx" / version("mlx") / ("ptx" if on_gpu else "cpu")
    return Path((os.environ.get("MLX_PTX_CACHE_DIR") if on_gpu else None) or folder)


def has_gpu() -> bool:
    """Whether this build of MLX has a GPU here."""
    return mx.is_available(mx.gpu)


def device_memory() -> int:
    """Bytes of the GPU's memory; 0 where there is no GPU, or MLX doesn't say."""
    if not has_gpu():
        return 0
    facts = mx.device_info(mx.gpu)
    return int(facts.get("memory_size") or facts.get("total_memory") or 0)


def training_memory() -> int:
    """Return the bytes of memory of the GPU that trains, MLX's default device.

    0 if it shares the machine's memory, or a CPU trains.
    """
    return 0 if unified() or mx.default_device() == mx.cpu else device_memory()


def kind(device: mx.Device) -> str:
    """``cpu`` or ``gpu``."""
    return "gpu" if device == mx.gpu else "cpu"


def unified() -> bool:
    """Whether CPU and GPU compute on the same memory: on Apple silicon, and where there is no GPU.

    Elsewhere a GPU has its own. What both read, a rollout say, is the host's then.
    """
    if stand_in() is not None:
        return gpu_backend() == "metal"
    return mx.metal.is_available() or not has_gpu()


def for_cpu(tree: Any) -> Any:
    """Arrays of the GPU as the CPU may read them, for as long as it likes.

    Where memory is unified these are the arrays themselves. Elsewhere they are copies: MLX moves an
    array that the host touches to the host for good, and the GPU would read it from there.
    """
    if unified():
        return tree
    with building, mx.stream(mx.gpu):
        copies = tree_map(_copy, tree)
    mx.eval(copies)
    return copies


def for_gpu(tree: Any) -> Any:
    """Arrays of the host as a GPU reads them fastest: copies in its own memory, if it has one.

    Not evaluated: the copy is made when it is first needed.
    """
    if unified():
        return tree
    return tree_map(_copy, tree)


def _copy(leaf: Any) -> Any:
    """Return a copy of an array on the default device, not evaluated; other leaves unchanged."""
    return leaf * mx.array(1, leaf.dtype) if isinstance(leaf, mx.array) else leaf
