"""Report the versions and the machine, for ``--version`` and the records of runs."""

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil

import puffer_mlx
from puffer_mlx.system.blas import blas_name, get_blas_threads


def describe_machine() -> dict[str, str]:
    """Return a description of this machine: versions, device, host name, cores and memory.

    Imports MLX.
    """
    memory = f"{psutil.virtual_memory().total / 2**30:.1f} GiB"
    hardware = {"host": platform.node(), "cores": str(os.cpu_count()), "memory": memory}
    return {**_versions(), **hardware}


def version_text() -> str:
    """Return the text of ``--version``: a line each for Python, MLX, device, BLAS and platform.

    Imports MLX.
    """
    return "\n".join(f"{name:<10}  {text}" for name, text in _versions().items())


def _versions() -> dict[str, str]:
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
    """Return MLX's version and the names of its installed back-end wheels.

    There should be only one such wheel, because they overwrite each other's files.
    """
    mlx = importlib.metadata.distribution("mlx")
    folder = Path(str(mlx.locate_file("")))  # only file names: reading all metadata takes 0.5 s
    wheels = sorted(
        path.name.partition("-")[0].replace("_", "-") for path in folder.glob("mlx_*.dist-info")
    )
    return f"{mlx.version} ({', '.join(wheels)})" if wheels else mlx.version
