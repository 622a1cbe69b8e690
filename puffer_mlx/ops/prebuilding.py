"""Compile the C++ libraries of a wheel: python -m puffer_mlx.ops.prebuilding FOLDER.

``hatch_build.py`` runs it and installs FOLDER as ``puffer_mlx/prebuilt`` (``system/prebuilt.py``).
"""

import sys
from pathlib import Path

from puffer_mlx.ops import cpu_extension
from puffer_mlx.system import blas, mac, prebuilt


def build_wheel_libraries(folder: Path) -> None:
    """Compile a wheel's libraries for this platform, Python and MLX into an empty folder."""
    for level in prebuilt.levels():
        library = cpu_extension.compile_extension(level=level)
        prebuilt.add_library(folder, cpu_extension.NAME, level, cpu_extension.built_for(), library)
    if not mac.on_a_mac():
        integer = "int64_t"  # BLAS integer type in NumPy's wheels
        library = blas.compile_shim(integer)
        level = ""  # the shim is the same for all CPUs
        prebuilt.add_library(folder, blas.SHIM, level, blas.shim_versions(integer), library)


if __name__ == "__main__":
    build_wheel_libraries(Path(sys.argv[1]))
