"""The C++ extension with CPU operations, which are lazy nodes of MLX's graph.

``cpu/`` has the shared code. The code of an operation or a network is in its folder; its headers
register it with the extension (see ``cpu/binding.h``).

MLX's CPU backend runs elementwise operations on one thread and without vector transcendentals. The
gates of a recurrence cost more there than all matrix products. The extension computes gates,
recurrence and highway in one pass over memory on all cores (measurements:
``benchmarks/RESULTS.md``).

Platform wheels contain the compiled extension (``system/prebuilt.py``). Otherwise it is compiled at
first use, with a C++20 compiler, and cached. Without a compiler plain MLX runs, which is slower;
one line on standard error reports this. The choice doesn't change during a run, because results
differ in the last bits.
"""

import functools
import importlib.machinery
import importlib.util
import os
import platform
import re
import sys
import sysconfig
import threading
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.system import mac, prebuilt, private_folders, verbosity
from puffer_mlx.system.blas import take_over_gemm
from puffer_mlx.system.compiler import compile_shared, compiler_hint, load_compiled
from puffer_mlx.system.files import publish
from puffer_mlx.system.private_folders import cache_directory

NAME = "cpu_ops"
NANOBIND = "nanobind>=3.0.1,<3.2"  # as in pyproject.toml; has the internals of MLX 0.32's nanobind
NEWEST_MLX = (0, 32)  # the newest MLX with which the extension was tested
PACKAGE = Path(__file__).parents[1]
UNITS = (("ops", "policy"), ("ppo",))  # compiled in parallel, in equal times
MODULE, TEXTS = Path("ops/cpu/module.h"), Path("ops/gpu")  # the last header; the folder without C++


def built_for() -> dict[str, str]:
    """Return the versions and the sources for which an extension is compiled."""
    texts = [text for path in headers() for text in (path.name, path.read_bytes())]
    return {
        "MLX": version("mlx"),
        "Python": sysconfig.get_config_var("SOABI"),
        "sources": prebuilt.text_hash(*texts),
    }


def flags(level: str | None = None) -> list[str]:
    """Return the flags of the compiler and the linker.

    Args:
        level: CPU level from ``prebuilt.LEVELS``, for a wheel: the library finds MLX's library by
            a relative path. None for this machine's CPU.
    """
    import nanobind

    root, package = Path(nanobind.__file__).parent, Path(mx.__file__).parent
    identity = f"{version('mlx')},{nanobind.__version__},{sysconfig.get_config_var('SOABI')}"
    features = " ".join(sorted(prebuilt.cpu_features())) or platform.processor()  # -march=native
    cpu = prebuilt.text_hash(features) if level is None else level
    beside = "@loader_path" if mac.on_a_mac() else "$ORIGIN"
    mlx_library = package / "lib" if level is None else f"{beside}/../../mlx/lib"
    flags = [
        "-std=c++20",
        "-O3",
        "-fvisibility=hidden",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-DNB_DOMAIN=mlx",
        f'-DPUFFER_BUILT_FOR="{identity},{cpu}"',
        f"-I{root / 'include'}",
        f"-I{root / 'ext' / 'robin_map' / 'include'}",
        f"-I{package / 'include'}",
        f"-I{sysconfig.get_paths()['include']}",
        f"-L{package / 'lib'}",
        "-lmlx",
        f"-Wl,-rpath,{mlx_library}",
    ]
    if mac.on_a_mac():
        return [*flags, "-undefined", "dynamic_lookup"]
    if platform.machine() == "x86_64":
        return [*flags, f"-march={level or 'native'}", "-mprefer-vector-width=512"]
    return [*flags, *(["-mcpu=native"] if level is None else [])]


_loading = threading.Lock()  # a learner and a collector may load at the same time


@functools.cache
def load() -> ModuleType | None:
    """Return the extension. Prints one line and returns None if it can't be loaded."""
    with _loading:  # ``functools.cache`` alone would load it in both threads
        return _load()


@functools.cache
def _load() -> ModuleType | None:
    if "PUFFER_MLX_NO_CPU_OPS" in os.environ:
        return None
    try:
        module = _build()
        _try(module)
    except UserError as error:
        hint = error.hint if "mlx==" in error.hint else _compiler_or_older_mlx()
        return _without(error.message.splitlines()[0].rstrip(":"), hint)
    except ImportError as error:
        return _without(str(error).splitlines()[0], _compiler_or_older_mlx())
    except TypeError:
        reason = f"nanobind {version('nanobind')} doesn't fit MLX {version('mlx')}"
        return _without(reason, _older_mlx() or f"pip install '{NANOBIND}'")
    module.set_threads(threads())
    product = take_over_gemm()
    if product.address:
        module.set_gemm(product.address, product.split)
    return module


def _build() -> ModuleType:
    """Load the wheel's extension if it fits this machine, else compile one."""
    library = prebuilt.find_library(NAME, built_for())
    why = library.reason
    if library.path:
        try:
            module = _import(library.path)
            _try(module)
            verbosity.detail(f"operations  {library.path}")
            return module
        except (ImportError, TypeError) as error:
            why = f"the one that came with puffer_mlx doesn't load: {str(error).splitlines()[0]}"
    try:
        return load_compiled(functools.partial(compile_extension, because=why), _import)
    except UserError as error:
        other = library.built_for.get("MLX")
        if not other or other == version("mlx"):
            raise
        hint = f"{compiler_hint(cpp=True)}; or pip install 'mlx=={other}', which needs none"
        raise UserError(error.message, hint) from None


def _import(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def write_sources(folder: Path) -> list[Path]:
    """Write the extension's sources into ``folder`` and return their paths.

    Files that are up to date aren't written, so a full disk does no harm.
    """
    texts = {folder / f"{NAME}_{'_'.join(unit)}.cpp": unit_text(unit) for unit in UNITS}
    for source, text in texts.items():
        if not source.is_file() or source.read_text() != text:
            with publish(source) as partial:
                partial.write_text(text)
    return [*texts]


def unit_text(unit: Sequence[str]) -> str:
    """Return the source of a compilation unit, which includes the headers of some folders."""
    paths = [path.relative_to(PACKAGE) for path in headers()]
    included = [path for path in paths if path.parts[0] in unit and path != MODULE]
    included += [MODULE] if unit == UNITS[-1] else []
    return "".join(f'#include "{path.as_posix()}"\n' for path in included)


def headers() -> list[Path]:
    """Return the sorted C++ headers of all folders with operations."""
    paths = [path for unit in UNITS for room in unit for path in (PACKAGE / room).rglob("*.h")]
    return sorted(
        path
        for path in paths
        if not path.name.endswith((".metal.h", ".kernel.h")) and PACKAGE / TEXTS not in path.parents
    )


def compile_extension(again: bool = False, level: str | None = None, because: str = "") -> Path:
    """Compile the extension unless it is cached, and return the library's path.

    Args:
        again: True to ignore the cache.
        level: CPU level, see ``flags``.
        because: the reason, printed while the user waits.
    """
    import nanobind

    text = prebuilt.text_hash(*map(unit_text, UNITS))
    sources = cache_directory() / f"{NAME}-{text}"  # a folder per version
    try:
        private_folders.make_private_folder(sources)
    except OSError as error:
        raise UserError(
            f"{NAME}: can't write compiled libraries to {sources.parent}: {error.strerror}",
            "set PUFFER_MLX_CACHE to a folder you can write to",
        ) from None
    glue = Path(nanobind.__file__).parent / "src" / "nb_combined.cpp"
    return compile_shared(
        NAME,
        [*write_sources(sources), glue],
        flags(level),
        compiler="c++",
        depends=headers(),
        include=[PACKAGE],  # for ``#include "ops/cpu/node.h"`` in any folder
        duration="10 to 20 seconds, longer on a busy machine" + (f": {because}" if because else ""),
        again=again,
        source_flags={glue: ["-O1"]},  # not critical for speed; -O3 takes 2 seconds more
    )


def _try(module: ModuleType) -> None:
    """Raise TypeError if the extension doesn't accept MLX arrays.

    Extensions share types only if they were built with the same version of nanobind's internals.
    Otherwise they load but reject every argument. The call evaluates nothing.
    """
    module.gelu_forward(mx.zeros(1))


def _older_mlx() -> str:
    """Return a hint to install an MLX that fits; empty unless the installed one is too new."""
    installed = tuple(int(number) for number in re.findall(r"\d+", version("mlx"))[:2])
    if installed <= NEWEST_MLX:
        return ""
    major, minor = NEWEST_MLX
    return f"pip install 'mlx<{major}.{minor + 1}', or a newer puffer_mlx"


def _compiler_or_older_mlx() -> str:
    """Return a hint to install a compiler, or also an MLX that fits."""
    return "; or ".join(filter(None, (compiler_hint(cpp=True), _older_mlx())))


def _without(reason: str, hint: str) -> None:
    print(
        f"puffer_mlx: training on the CPU will be several times slower: {reason}; hint: {hint}",
        file=sys.stderr,
    )


def threads() -> int:
    """Return the number of cores available to this process; on a Mac, of performance cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return mac.performance_cores() or os.cpu_count() or 1
