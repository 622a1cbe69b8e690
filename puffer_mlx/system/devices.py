"""Select MLX's device, copy arrays between CPU and GPU, and report the GPU's memory.

MLX's default device is a variable of the process, which ``with mx.stream(s)`` sets. An operation
uses the device that is the default when the graph is built (also in ``ops/implementation.py``). If
two threads build graphs for two devices, each must hold ``building`` meanwhile. Evaluating a graph
needs no lock, since the graph contains its streams.
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
from puffer_mlx.system.private_folders import (
    cache_directory,
    mlx_temporary_folder,
    refuse_full_disk,
)

building = threading.RLock()  # held while a graph is built for a device
_pid: int | None = None  # ID of the process that computes with MLX
CUBIN = ".cubin"  # suffix of kernels compiled by NVRTC


def select_device(name: str) -> mx.Device:
    """Choose and set MLX's default device by name. Returns the device.

    Args:
        name: ``cpu``, ``gpu``, or ``auto`` for the GPU if there is one.

    Raises:
        UserError: ``gpu`` was requested, but MLX has no GPU here.
    """
    if name == "gpu" and not has_gpu():
        raise UserError(
            "base.device is gpu, but this build of MLX has no GPU",
            "--device cpu; or on Linux with an NVIDIA GPU: pip install 'puffer-mlx[cuda]'",
        )
    mx.set_default_device(mx.gpu if has_gpu() and name != "cpu" else mx.cpu)
    return mx.default_device()


def refuse_forked() -> None:
    """Raise an error if this process was forked from a process that computed with MLX.

    MLX's streams are threads, which a forked process lacks. It would wait for them forever.

    Raises:
        UserError: The process was forked.
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
    """Return a line for users who wait while MLX compiles its kernels, or "" if they are cached.

    Raises:
        UserError: The disk has no space for the kernels.
    """
    if mx.metal.is_available():
        return ""  # Metal's kernels come with MLX
    on_gpu = mx.default_device() == mx.gpu
    compiles = on_gpu or shutil.which("g++")  # a CPU's kernels need g++
    has_cubins = on_gpu and any(cache_directory().glob(f"*{CUBIN}"))
    if has_cubins or kernels_folder().is_dir() or not compiles:
        return ""
    refuse_full_disk()
    takes = "a few seconds" if on_gpu else "about ten seconds"
    whose = "a GPU's" if on_gpu else "MLX's"
    return f"puffer_mlx: compiling {whose} kernels for the first time, which takes {takes}"


def kernels_folder() -> Path:
    """Return the folder where MLX caches compiled kernels for the default device (not Metal)."""
    on_gpu = mx.default_device() == mx.gpu
    folder = mlx_temporary_folder() / "mlx" / version("mlx") / ("ptx" if on_gpu else "cpu")
    return Path((os.environ.get("MLX_PTX_CACHE_DIR") if on_gpu else None) or folder)


def has_gpu() -> bool:
    """Return True if MLX can use a GPU on this machine."""
    return mx.is_available(mx.gpu)


def device_memory() -> int:
    """Return the size of the GPU's memory in bytes, or 0 without a GPU or if it is unknown."""
    if not has_gpu():
        return 0
    info = mx.device_info(mx.gpu)
    return int(info.get("memory_size") or info.get("total_memory") or 0)


def training_memory() -> int:
    """Return the memory in bytes of the GPU that trains, if it has separate memory.

    Returns 0 if the GPU shares the machine's memory, or if MLX's default device is a CPU.
    """
    return 0 if unified() or mx.default_device() == mx.cpu else device_memory()


def kind(device: mx.Device) -> str:
    """Return a device's kind as text: ``cpu`` or ``gpu``."""
    return "gpu" if device == mx.gpu else "cpu"


def unified() -> bool:
    """Return True if CPU and GPU share memory: on Apple silicon, and on machines without a GPU.

    Other GPUs have separate memory. Arrays that CPU and GPU use, such as a rollout, are then in
    host memory.
    """
    if kernel_substitute() is not None:
        return gpu_backend() == "metal"
    return mx.metal.is_available() or not has_gpu()


def for_cpu(tree: Any) -> Any:
    """Return a tree of GPU arrays that the CPU can read repeatedly: a copy if memory is separate.

    With unified memory this is the tree itself, otherwise it contains copies. Without a copy, MLX
    would move an array to the host on the first read, and the GPU would read it there from then on.
    """
    if unified():
        return tree
    with building, mx.stream(mx.gpu):
        copies = tree_map(_copy, tree)
    mx.eval(copies)
    return copies


def for_gpu(tree: Any) -> Any:
    """Return a tree of host arrays that the GPU can use fast: a copy if its memory is separate.

    If the GPU has separate memory, the arrays are copied into it. The copies are lazy: MLX makes
    them on first use.
    """
    if unified():
        return tree
    return tree_map(_copy, tree)


def _copy(leaf: Any) -> Any:
    """Return a lazy copy of a tree's leaf on the default device, if the leaf is an array.

    Other leaves are returned unchanged.
    """
    return leaf * mx.array(1, leaf.dtype) if isinstance(leaf, mx.array) else leaf
