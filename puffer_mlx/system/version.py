"""What ``--version`` prints: all that a bug report needs."""

import importlib.metadata
import platform

import puffer_mlx
from puffer_mlx.system.blas import blas_name, get_blas_threads


def version_text() -> str:
    """Versions and devices, one per line. Imports MLX.

    Returns:
        lines of a name and a value: puffer_mlx, Python, MLX, device, BLAS, platform.
    """
    import mlx.core as mx

    threads = get_blas_threads()
    return "\n".join(
        (
            f"puffer_mlx  {puffer_mlx.__version__}",
            f"Python      {platform.python_version()}",
            f"MLX         {_mlx_version()}",
            f"device      {_device(mx.default_device())}",
            f"BLAS        {blas_name()}" + (f", threads: {threads}" if threads else ""),
            f"platform    {platform.platform()}",
        )
    )


def _device(device) -> str:
    import mlx.core as mx

    name = mx.device_info(device).get("device_name", "unnamed")
    return f"{device.type.name} ({name})"


def _mlx_version() -> str:
    """MLX's version and the wheels of its backend: two of them overwrite each other's files."""
    version = importlib.metadata.version("mlx")
    wheels = sorted(
        name
        for distribution in importlib.metadata.distributions()
        if (name := distribution.metadata["Name"]).startswith("mlx-")
    )
    return f"{version} ({', '.join(wheels)})" if wheels else version
