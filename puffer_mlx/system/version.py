"""Output of ``--version``: everything that a bug report needs."""

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil

import puffer_mlx
from puffer_mlx.system.blas import blas_name, get_blas_threads


def machine() -> dict[str, str]:
    """Return the machine of a run: versions, devices, host, cores, memory. Imports MLX."""
    memory = f"{psutil.virtual_memory().total / 2**30:.1f} GiB"
    more = {"host": platform.node(), "cores": str(os.cpu_count()), "memory": memory}
    return {**_facts(), **more}


def version_text() -> str:
    """Return versions and devices, one per line. Imports MLX.

    Returns:
        Lines of a name and a value: puffer_mlx, Python, MLX, device, BLAS, platform.
    """
    return "\n".join(f"{name:<10}  {text}" for name, text in _facts().items())


def _facts() -> dict[str, str]:
    import mlx.core as mx

    threads = get_blas_threads()
    return {
        "puffer_mlx": puffer_mlx.__version__,
        "Python": platform.python_version(),
        "MLX": _mlx_version(),
        "device": _device(mx.default_device()),
        "BLAS": blas_name() + (f", threads: {threads}" if threads else ""),
        "platform": platform.platform(),
    }


def _device(device) -> str:
    import mlx.core as mx

    name = mx.device_info(device).get("device_name", "unnamed")
    return f"{device.type.name} ({name})"


def _mlx_version() -> str:
    """Return MLX's version and its back-end wheels; two of them overwrite each other's files."""
    mlx = importlib.metadata.distribution("mlx")
    folder = Path(str(mlx.locate_file("")))  # by names only: reading all metadata takes 0.5 s
    wheels = sorted(
        path.name.partition("-")[0].replace("_", "-") for path in folder.glob("mlx_*.dist-info")
    )
    return f"{mlx.version} ({', '.join(wheels)})" if wheels else mlx.version
