"""Linux only: a fast BLAS in place of MLX's reference BLAS, chosen before MLX loads.

MLX's wheels for Linux multiply matrices on the CPU with netlib's reference BLAS, about 15 times
slower than the OpenBLAS that NumPy's wheels carry. The dynamic linker gives ``libmlx.so`` the first
global ``cblas_sgemm`` it meets, so ``import puffer_mlx`` loads one before anything loads MLX:

1. one that is global already (``LD_PRELOAD``) stays;
2. else NumPy's OpenBLAS, through a shim of the wheel or compiled once (``blas_shim.c``: NumPy
   renames the functions and widens their integers);
3. else the system's OpenBLAS;
4. else MLX's own, with one line on standard error.

LAPACK stays MLX's in all but the third. On macOS MLX's products are Accelerate's, and stay so.
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

GEMMS = ("sgemm", "dgemm", "cgemm")  # the CBLAS functions that libmlx.so takes from outside
SHIM = "blas_shim"
_SOURCE = Path(__file__).with_name("blas_shim.c")


def use_fast_blas() -> str:
    """Give MLX the fastest BLAS to be had; the first call decides, and must precede MLX's import.

    Never raises for lack of one: without a compiler, a writable cache or an OpenBLAS, MLX keeps its
    reference BLAS, and one line on standard error says why and what to do.

    Returns:
        its name, for people: ``OpenBLAS 0.3.31 (NumPy's)``, ``Accelerate``, ``reference (slow)``.
    """
    return _choice()[0]


def blas_name() -> str:
    """The name that `use_fast_blas` returned."""
    return _choice()[0]


def get_blas_threads() -> int:
    """Threads OpenBLAS uses for one product; 0 where MLX's BLAS isn't an OpenBLAS."""
    library = _choice()[1]
    return library.function("openblas_get_num_threads")() if library else 0


def set_blas_threads(threads: int) -> None:
    """Set the threads OpenBLAS uses for one product; no effect where it isn't an OpenBLAS.

    NumPy's own products share the setting. Its default is ``OPENBLAS_NUM_THREADS``, else all cores.

    Args:
        threads: at least 1.

    Raises:
        ValueError: ``threads`` is below 1.
    """
    if threads < 1:
        raise ValueError(f"BLAS threads must be at least 1, got {threads}")
    library = _choice()[1]
    if library:
        library.function("openblas_set_num_threads")(threads)


class Gemm(NamedTuple):
    """A BLAS's product of float32 matrices, for a caller that has threads of its own.

    Attributes:
        address: of ``cblas_sgemm`` (32-bit integers); 0: there is none to be had.
        split: whether the caller should divide a product among its threads. Accelerate does that by
            itself: its matrix unit belongs to all cores of a cluster.
    """

    address: int
    split: bool = True


def take_over_gemm() -> Gemm:
    """The product of MLX's BLAS; an OpenBLAS computes on its caller's thread only from now on.

    Nothing is there, and nothing changed, where MLX's BLAS is neither OpenBLAS nor Accelerate.
    """
    if mac.on_a_mac():
        return Gemm(mac.accelerate_gemm(), split=False)
    if not _choice()[1]:
        return Gemm(0)
    set_blas_threads(1)
    return Gemm(ctypes.cast(ctypes.CDLL(None).cblas_sgemm, ctypes.c_void_p).value or 0)


@dataclass(frozen=True)
class _OpenBlas:
    """A loaded OpenBLAS, and how its functions are called: NumPy's says ``scipy_`` and ``64_``."""

    library: ctypes.CDLL
    prefix: str
    suffix: str

    def function(self, name: str):
        return getattr(self.library, f"{self.prefix}{name}{self.suffix}")

    @property
    def config(self) -> str:
        """OpenBLAS's own words: ``OpenBLAS 0.3.31 USE64BITINT DYNAMIC_ARCH ...``."""
        get_config = self.function("openblas_get_config")
        get_config.restype = ctypes.c_char_p
        return get_config().decode()

    @property
    def integer(self) -> type[ctypes.c_int64] | type[ctypes.c_int]:
        return ctypes.c_int64 if "USE64BITINT" in self.config else ctypes.c_int

    def named(self, source: str) -> str:
        return f"{' '.join(self.config.split()[:2])} ({source})"


@functools.cache
def _choice() -> tuple[str, _OpenBlas | None]:
    """MLX's BLAS: its name, and the library if it's an OpenBLAS."""
    if mac.on_a_mac():
        return "Accelerate", None
    process = ctypes.CDLL(None)
    if hasattr(process, "cblas_sgemm"):
        preloaded = _recognise(process)
        return (preloaded.named("preloaded"), preloaded) if preloaded else ("preloaded", None)
    if "mlx.core" in sys.modules:
        return _reference("mlx was imported first", "import puffer_mlx before mlx")
    reason = "NumPy carries no OpenBLAS"
    for blas in _numpy_openblas():
        try:
            _forward(blas)
            return blas.named("NumPy's"), blas
        except Exception as error:  # a UserError, or an OSError; RuntimeError: no home directory
            reason = str(error).partition("\n")[0]
    for path in (f"{sys.prefix}/lib/libopenblas.so.0", "libopenblas.so.0", "libopenblas.so"):
        blas = _load(path)
        if blas and blas.integer is ctypes.c_int and not blas.suffix:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            return blas.named("system"), blas
    from puffer_mlx.system.compiler import compiler_hint

    return _reference(reason, f"{compiler_hint()}; or OpenBLAS (Debian: libopenblas0)")


def _reference(reason: str, hint: str) -> tuple[str, None]:
    print(
        f"puffer_mlx: MLX's CPU backend keeps its slow reference BLAS: {reason}; hint: {hint}",
        file=sys.stderr,
    )
    return "reference (slow)", None


def _numpy_openblas() -> Iterator[_OpenBlas]:
    """The OpenBLAS in NumPy's wheel; NumPy from conda or a distribution has none."""
    spec = importlib.util.find_spec("numpy")
    if spec and spec.origin:
        libraries = Path(spec.origin).parents[1] / "numpy.libs"
        for path in map(str, libraries.glob("*openblas*.so*")):
            if blas := _load(path) or _load_after(libraries, path):
                yield blas


def _load_after(libraries: Path, path: str) -> _OpenBlas | None:
    """The same, after what it needs: NumPy 1.26's doesn't say where its libgfortran is."""
    for needed in "libquadmath", "libgfortran":  # the latter needs the former
        for library in libraries.glob(f"{needed}*.so*"):
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(library))
    return _load(path)


def _load(path: str) -> _OpenBlas | None:
    """The OpenBLAS at ``path``, its symbols kept local; None if there's none."""
    try:
        return _recognise(ctypes.CDLL(path))
    except OSError:
        return None


def _recognise(library: ctypes.CDLL) -> _OpenBlas | None:
    """The library as an OpenBLAS, None if it's another."""
    needed = ["openblas_get_config", *(f"cblas_{name}" for name in GEMMS)]
    for prefix, suffix in itertools.product(("scipy_", ""), ("64_", "")):
        if all(hasattr(library, f"{prefix}{name}{suffix}") for name in needed):
            return _OpenBlas(library, prefix, suffix)
    return None


def _forward(blas: _OpenBlas) -> None:
    """Define MLX's BLAS functions globally, as calls of ``blas``."""
    integer = "int64_t" if blas.integer is ctypes.c_int64 else "int"
    path, shim = _shim(integer)
    for name in GEMMS:
        target = ctypes.cast(blas.function(f"cblas_{name}"), ctypes.c_void_p)
        ctypes.c_void_p.in_dll(shim, f"puffer_mlx_{name}").value = target.value
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # only now that its targets are set


def _shim(integer: str) -> tuple[Path, ctypes.CDLL]:
    """The package's, if it is for this machine; else the cache's, which a compiler makes here.

    Nothing that compiles is imported where there is one: every import of puffer_mlx comes here.
    """

    def load(path: Path) -> tuple[Path, ctypes.CDLL]:
        return path, ctypes.CDLL(str(path))

    if path := prebuilt.find(SHIM, shim_for(integer)).path:
        with contextlib.suppress(OSError):
            return load(path)
    if prebuilt.is_whole(path := _kept(integer)):
        with contextlib.suppress(OSError):
            return load(path)
    from puffer_mlx.system.compiler import load_compiled

    return load_compiled(functools.partial(compile_shim, integer), load)


def compile_shim(integer: str, again: bool = False) -> Path:
    """Compile what forwards MLX's calls to an OpenBLAS with integers of that C type."""
    from puffer_mlx.system.compiler import compile_shared

    flags = ["-O2", f"-DBLAS_INT={integer}"]
    return compile_shared(SHIM, [_SOURCE], flags, again=again, kept=_kept(integer))


def _kept(integer: str) -> Path:
    """Where the compiled one is; its name needs no question to the compiler, which takes time."""
    machine = sys.platform, platform.machine(), os.environ.get("CC", "")
    digest = prebuilt.hash_of(*shim_for(integer).values(), *machine)
    return cache_directory() / f"{SHIM}-{digest}.so"


def shim_for(integer: str) -> dict[str, str]:
    """What a compiled shim belongs to."""
    return {"integers": integer, "sources": prebuilt.hash_of(_SOURCE.read_bytes())}
