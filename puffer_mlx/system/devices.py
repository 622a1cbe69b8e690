"""Devices: select one, copy arrays between CPU and GPU, and lock the default.

MLX's default *device* is one variable of the process, which ``with mx.stream(s)`` sets. Operations
use the default device at the time they are built, and so do fused forms
(``ops/implementation.py``). If two threads build graphs for two devices, each must hold
``building`` meanwhile. Evaluation needs no lock, since a graph contains its streams.
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
from puffer_mlx.system.backend import gpu_backend, kernel_substitute
from puffer_mlx.system.private_folders import cache_directory, refuse_full, temporary

building = threading.RLock()
_pid: int | None = None  # process that computes with MLX
CUBIN = ".cubin"  # suffix of kernels compiled by NVRTC


def select_device(name: str) -> mx.Device:
    """Make ``auto``, ``cpu`` or ``gpu`` MLX's default device and return it.

    Raises:
        UserError: ``gpu`` was requested, and this MLX has no GPU.
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

    MLX's streams are threads, which a forked process doesn't have. It would wait for them forever.

    Raises:
        UserError: This is such a process.
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
    """Return a line for a first start while kernels are compiled for this device, else "".

    Raises:
        UserError: The disk has no space for them.
    """
    if mx.metal.is_available():
        return ""  # Metal's kernels come with MLX
    on_gpu = mx.default_device() == mx.gpu
    compiles = on_gpu or shutil.which("g++")  # no kernels without g++
    ours = on_gpu and any(cache_directory().glob(f"*{CUBIN}"))
    if ours or kernels_folder().is_dir() or not compiles:
        return ""
    refuse_full()
    takes = "a few seconds" if on_gpu else "about ten seconds"
    whose = "a GPU's" if on_gpu else "MLX's"
    return f"puffer_mlx: compiling {whose} kernels for the first time, which takes {takes}"


def kernels_folder() -> Path:
    """Return MLX's folder of compiled kernels for the default device, except Metal's."""
    on_gpu = mx.default_device() == mx.gpu
    folder = temporary() / "mlx" / version("mlx") / ("ptx" if on_gpu else "cpu")
    return Path((os.environ.get("MLX_PTX_CACHE_DIR") if on_gpu else None) or folder)


def has_gpu() -> bool:
    """Return True if this build of MLX can use a GPU here."""
    return mx.is_available(mx.gpu)


def device_memory() -> int:
    """Return the bytes of the GPU's memory, 0 without a GPU or if MLX doesn't report them."""
    if not has_gpu():
        return 0
    facts = mx.device_info(mx.gpu)
    return int(facts.get("memory_size") or facts.get("total_memory") or 0)


def training_memory() -> int:
    """Return the bytes of memory of the GPU that trains, MLX's default device.

    Returns 0 if the GPU shares the machine's memory, or a CPU trains.
    """
    return 0 if unified() or mx.default_device() == mx.cpu else device_memory()


def kind(device: mx.Device) -> str:
    """Return ``cpu`` or ``gpu``."""
    return "gpu" if device == mx.gpu else "cpu"


def unified() -> bool:
    """Return True if CPU and GPU share memory: on Apple silicon, and without a GPU.

    Elsewhere a GPU has separate memory, and arrays that both read, such as a rollout, are on the
    host.
    """
    if kernel_substitute() is not None:
        return gpu_backend() == "metal"
    return mx.metal.is_available() or not has_gpu()


def for_cpu(tree: Any) -> Any:
    """Return arrays of the GPU for lasting use by the CPU.

    With unified memory they are the arrays themselves, elsewhere copies. MLX moves an array that
    the host reads to the host permanently, and the GPU would then read it from there.
    """
    if unified():
        return tree
    with building, mx.stream(mx.gpu):
        copies = tree_map(_copy, tree)
    mx.eval(copies)
    return copies


def for_gpu(tree: Any) -> Any:
    """Return arrays of the host for fast use by the GPU: copies in its memory, if it is separate.

    The copies aren't evaluated: they are made on first use.
    """
    if unified():
        return tree
    return tree_map(_copy, tree)


def _copy(leaf: Any) -> Any:
    """Return a copy of an array on the default device, not evaluated; other leaves unchanged."""
    return leaf * mx.array(1, leaf.dtype) if isinstance(leaf, mx.array) else leaf
