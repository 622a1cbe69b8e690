"""Replace MLX's slow reference BLAS with a fast one on Linux, before MLX loads.

On Linux, MLX's wheels multiply matrices on the CPU with netlib's reference BLAS, about 15 times
slower than the OpenBLAS in NumPy's wheels. The dynamic linker binds ``libmlx.so`` to the first
global ``cblas_sgemm``, so ``import puffer_mlx`` loads a BLAS before MLX. It is the first of these
that is available:

1. a BLAS that is already loaded (``LD_PRELOAD``);
2. NumPy's OpenBLAS, called through a shim (``blas_shim.c``) that comes with the wheel or is
compiled once, since NumPy renames the functions and uses 64-bit integers;
3. the system's OpenBLAS;
4. MLX's reference BLAS, with a warning on standard error.

LAPACK is always MLX's, except in case 3. On macOS, MLX uses Accelerate.
"""

import contextlib
import ctypes
import functools
import importlib.util
import itertools
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.system import mac, prebuilt
from puffer_mlx.system.private_folders import cache_directory

GEMMS = ("sgemm", "dgemm", "cgemm")  # CBLAS functions that libmlx.so imports
SHIM = "blas_shim"
_SOURCE = Path(__file__).with_name("blas_shim.c")


def use_fast_blas() -> str:
    """Make MLX use the fastest available BLAS. Call this before importing MLX.

    Without a compiler, a writable cache or an OpenBLAS, MLX uses its reference BLAS, and a line on
    standard error gives the reason and a hint. Later calls only return the name.

    Returns:
        Name of the BLAS: ``OpenBLAS 0.3.31 (NumPy's)``, ``Accelerate``, ``reference (slow)``.
    """
    return _choice()[0]


def blas_name() -> str:
    """Return the name of the BLAS that MLX uses, for example ``OpenBLAS 0.3.31 (NumPy's)``."""
    return _choice()[0]


def get_blas_threads() -> int:
    """Return OpenBLAS's number of threads per matrix product, or 0 for another BLAS."""
    library = _choice()[1]
    return library.function("openblas_get_num_threads")() if library else 0


def set_blas_threads(threads: int) -> None:
    """Set OpenBLAS's number of threads per matrix product. No effect on another BLAS.

    NumPy shares the setting. The default is ``OPENBLAS_NUM_THREADS``, else all cores.

    Args:
        threads: Number of threads, at least 1.

    Raises:
        ValueError: ``threads`` is below 1.
    """
    if threads < 1:
        raise ValueError(f"BLAS threads must be at least 1, got {threads}")
    library = _choice()[1]
    if library:
        library.function("openblas_set_num_threads")(threads)


class Gemm(NamedTuple):
    """Address of the BLAS function for float32 matrix products, called by C code with threads.

    Attributes:
        address: Address of ``cblas_sgemm`` (with 32-bit integers), or 0.
        split: True if the caller should divide a product among its threads. False for Accelerate,
            whose matrix unit is shared by the cores of a cluster.
    """

    address: int
    split: bool = True


def take_over_gemm() -> Gemm:
    """Return the BLAS function for matrix products, and make OpenBLAS use the calling thread only.

    If MLX's BLAS is neither OpenBLAS nor Accelerate, the address is 0 and nothing changes.
    """
    if mac.on_a_mac():
        return Gemm(mac.accelerate_gemm(), split=False)
    if not _choice()[1]:
        return Gemm(0)
    set_blas_threads(1)
    return Gemm(ctypes.cast(ctypes.CDLL(None).cblas_sgemm, ctypes.c_void_p).value or 0)


@dataclass(frozen=True)
class _OpenBlas:
    """A loaded OpenBLAS library.

    Args:
        library: The library.
        prefix: Prefix of its function names; NumPy's has ``scipy_``.
        suffix: Suffix of its function names; NumPy's has ``64_``.
    """

    library: ctypes.CDLL
    prefix: str
    suffix: str

    def function(self, name: str):
        return getattr(self.library, f"{self.prefix}{name}{self.suffix}")

    @property
    def config(self) -> str:
        """OpenBLAS's version and build options: ``OpenBLAS 0.3.31 USE64BITINT ...``."""
        get_config = self.function("openblas_get_config")
        get_config.restype = ctypes.c_char_p
        return get_config().decode()

    @property
    def integer(self) -> type[ctypes.c_int64] | type[ctypes.c_int]:
        return ctypes.c_int64 if "USE64BITINT" in self.config else ctypes.c_int

    def label(self, source: str) -> str:
        return f"{' '.join(self.config.split()[:2])} ({source})"


@functools.cache
def _choice() -> tuple[str, _OpenBlas | None]:
    """Choose and load a BLAS for MLX. Returns its name, and the library if it is an OpenBLAS."""
    if mac.on_a_mac():
        return "Accelerate", None
    process = ctypes.CDLL(None)
    if hasattr(process, "cblas_sgemm"):
        preloaded = _recognise(process)
        return (preloaded.label("preloaded"), preloaded) if preloaded else ("preloaded", None)
    if "mlx.core" in sys.modules:
        return _reference("mlx was imported first", "import puffer_mlx before mlx")
    reason = "NumPy carries no OpenBLAS"
    for blas in _numpy_openblas():
        try:
            _forward(blas)
            return blas.label("NumPy's"), blas
        except Exception as error:  # UserError, OSError, or RuntimeError without a home directory
            reason = str(error).partition("\n")[0]
    for path in (f"{sys.prefix}/lib/libopenblas.so.0", "libopenblas.so.0", "libopenblas.so"):
        blas = _load(path)
        if blas and blas.integer is ctypes.c_int and not blas.suffix:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            return blas.label("system"), blas
    from puffer_mlx.system.compiler import compiler_hint

    return _reference(reason, f"{compiler_hint()}; or OpenBLAS (Debian: libopenblas0)")


def _reference(reason: str, hint: str) -> tuple[str, None]:
    print(
        f"puffer_mlx: MLX's CPU backend keeps its slow reference BLAS: {reason}; hint: {hint}",
        file=sys.stderr,
    )
    return "reference (slow)", None


def _numpy_openblas() -> Iterator[_OpenBlas]:
    """Yield the OpenBLAS of NumPy's wheel. NumPy from conda or a Linux distribution has none."""
    spec = importlib.util.find_spec("numpy")
    if spec and spec.origin:
        libraries = Path(spec.origin).parents[1] / "numpy.libs"
        for path in map(str, libraries.glob("*openblas*.so*")):
            if blas := _load(path) or _load_after(libraries, path):
                yield blas


def _load_after(libraries: Path, path: str) -> _OpenBlas | None:
    """Load NumPy 1.26's OpenBLAS after its dependencies, which the linker doesn't find."""
    for dependency in "libquadmath", "libgfortran":  # libgfortran needs libquadmath
        for library in libraries.glob(f"{dependency}*.so*"):
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(library))
    return _load(path)


def _load(path: str) -> _OpenBlas | None:
    """Load an OpenBLAS with local symbols. Returns None for other files."""
    try:
        return _recognise(ctypes.CDLL(path))
    except OSError:
        return None


def _recognise(library: ctypes.CDLL) -> _OpenBlas | None:
    """Wrap a loaded library as an OpenBLAS, or return None if it is another library."""
    required = ["openblas_get_config", *(f"cblas_{name}" for name in GEMMS)]
    for prefix, suffix in itertools.product(("scipy_", ""), ("64_", "")):
        if all(hasattr(library, f"{prefix}{name}{suffix}") for name in required):
            return _OpenBlas(library, prefix, suffix)
    return None


def _forward(blas: _OpenBlas) -> None:
    """Redirect the BLAS functions that MLX calls to an OpenBLAS."""
    integer = "int64_t" if blas.integer is ctypes.c_int64 else "int"
    path, shim = _shim(integer)
    for name in GEMMS:
        target = ctypes.cast(blas.function(f"cblas_{name}"), ctypes.c_void_p)
        ctypes.c_void_p.in_dll(shim, f"puffer_mlx_{name}").value = target.value
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # after its targets are set


def _shim(integer: str) -> tuple[Path, ctypes.CDLL]:
    """Load the library that forwards MLX's BLAS calls to OpenBLAS: the wheel's, or compile it.

    The compiler module is imported only if needed, because every import of puffer_mlx runs this.
    """

    def load(path: Path) -> tuple[Path, ctypes.CDLL]:
        return path, ctypes.CDLL(str(path))

    if path := prebuilt.find_library(SHIM, shim_versions(integer)).path:
        with contextlib.suppress(OSError):
            return load(path)
    if prebuilt.is_intact(path := _cached_path(integer)):
        with contextlib.suppress(OSError):
            return load(path)
    from puffer_mlx.system.compiler import load_compiled

    return load_compiled(functools.partial(compile_shim, integer), load)


def compile_shim(integer: str, again: bool = False) -> Path:
    """Compile the shim that forwards MLX's BLAS calls to OpenBLAS. Returns the library's path.

    Args:
        integer: C type of OpenBLAS's integers.
        again: Compile even if the cache has the library.
    """
    from puffer_mlx.system.compiler import compile_shared

    flags = ["-O2", f"-DBLAS_INT={integer}"]
    return compile_shared(SHIM, [_SOURCE], flags, again=again, output=_cached_path(integer))


def _cached_path(integer: str) -> Path:
    """Return the path of the compiled BLAS shim in the cache, without calling the compiler."""
    machine = sys.platform, platform.machine(), os.environ.get("CC", "")
    digest = prebuilt.text_hash(*shim_versions(integer).values(), *machine)
    return cache_directory() / f"{SHIM}-{digest}.so"


def shim_versions(integer: str) -> dict[str, str]:
    """Return the versions that a compiled BLAS shim depends on: OpenBLAS's integers, its source."""
    return {"integers": integer, "sources": prebuilt.text_hash(_SOURCE.read_bytes())}
