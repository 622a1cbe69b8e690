"""Compile and load the C++ extension, which computes operations on a CPU.

Its operations are lazy nodes of MLX's graph. ``cpu/`` has the shared C++ code. Each operation and
each network has its C++ in headers of its folder, which register it with the extension
(``cpu/binding.h``).

MLX's CPU backend runs elementwise operations on one thread and without vector transcendentals, so
the gates of a recurrence would take longer than all matrix products. The extension computes gates,
recurrence and highway connection in one pass over memory on all cores (measurements:
``benchmarks/RESULTS.md``).

Platform wheels contain the compiled extension (``system/prebuilt.py``). Otherwise it is compiled at
first use with a C++20 compiler, and cached. Without a compiler, plain MLX is used and one line on
standard error reports it. The choice never changes during a run, because results differ in the last
bits.
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
NANOBIND_REQUIREMENT = "nanobind>=3.0.1,<3.2"  # as in pyproject.toml: matches MLX 0.32
NEWEST_MLX = (0, 32)  # newest version of MLX that was tested with the extension
PACKAGE = Path(__file__).parents[1]
COMPILATION_UNITS = (("ops", "policy"), ("ppo",))  # compiled in parallel, equally long
MODULE_HEADER = Path("ops/cpu/module.h")  # included after all other headers
KERNEL_FOLDER = Path("ops/gpu")  # its headers are for kernels, not for the extension


def built_for() -> dict[str, str]:
    """Return the versions of MLX and Python and the source hash that a library must match."""
    texts = [text for path in extension_headers() for text in (path.name, path.read_bytes())]
    return {
        "MLX": version("mlx"),
        "Python": sysconfig.get_config_var("SOABI"),
        "sources": prebuilt.text_hash(*texts),
    }


def compiler_flags(level: str | None = None) -> list[str]:
    """Return compiler and linker flags for the C++ extension.

    Args:
        level: CPU level from ``prebuilt.LEVELS`` for a library in a wheel, which finds MLX's
            library by a relative path. None compiles for this machine's CPU.
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
def load_extension() -> ModuleType | None:
    """Return the C++ extension. If it can't be loaded, print one line and return None."""
    with _loading:  # ``functools.cache`` alone would let both threads load it
        return _load()


@functools.cache
def _load() -> ModuleType | None:
    if "PUFFER_MLX_NO_CPU_OPS" in os.environ:
        return None
    try:
        module = _find_or_compile()
        _check_types(module)
    except UserError as error:
        hint = error.hint if "mlx==" in error.hint else _compiler_or_older_mlx()
        return _print_fallback(error.message.splitlines()[0].rstrip(":"), hint)
    except ImportError as error:
        return _print_fallback(str(error).splitlines()[0], _compiler_or_older_mlx())
    except TypeError:
        reason = f"nanobind {version('nanobind')} doesn't fit MLX {version('mlx')}"
        return _print_fallback(reason, _older_mlx() or f"pip install '{NANOBIND_REQUIREMENT}'")
    module.set_threads(count_cores())
    product = take_over_gemm()
    if product.address:
        module.set_gemm(product.address, product.split)
    return module


def _find_or_compile() -> ModuleType:
    """Load the wheel's C++ extension if it fits this machine, else compile the extension."""
    library = prebuilt.find_library(NAME, built_for())
    reason = library.reason
    if library.path:
        try:
            module = _import_library(library.path)
            _check_types(module)
            verbosity.detail(f"operations  {library.path}")
            return module
        except (ImportError, TypeError) as error:
            text = str(error).splitlines()[0]
            reason = f"the extension in puffer_mlx's wheel doesn't load: {text}"
    try:
        return load_compiled(functools.partial(compile_extension, because=reason), _import_library)
    except UserError as error:
        other = library.built_for.get("MLX")
        if not other or other == version("mlx"):
            raise
        hint = f"{compiler_hint(cpp=True)}; or pip install 'mlx=={other}', which needs none"
        raise UserError(error.message, hint) from None


def _import_library(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def write_sources(folder: Path) -> list[Path]:
    """Write the extension's C++ sources into a folder. Returns their paths.

    Files that are up to date aren't written again, so a full disk does no harm.
    """
    texts = {folder / f"{NAME}_{'_'.join(unit)}.cpp": unit_text(unit) for unit in COMPILATION_UNITS}
    for source, text in texts.items():
        if not source.is_file() or source.read_text() != text:
            with publish(source) as partial:
                partial.write_text(text)
    return [*texts]


def unit_text(unit: Sequence[str]) -> str:
    """Return the C++ text of a compilation unit: it includes all headers of the unit's folders."""
    paths = [path.relative_to(PACKAGE) for path in extension_headers()]
    included = [path for path in paths if path.parts[0] in unit and path != MODULE_HEADER]
    included += [MODULE_HEADER] if unit == COMPILATION_UNITS[-1] else []
    return "".join(f'#include "{path.as_posix()}"\n' for path in included)


def extension_headers() -> list[Path]:
    """Return the sorted paths of the extension's C++ headers."""
    paths = [
        path
        for unit in COMPILATION_UNITS
        for folder in unit
        for path in (PACKAGE / folder).rglob("*.h")
    ]
    return sorted(
        path
        for path in paths
        if not path.name.endswith((".metal.h", ".kernel.h"))
        and PACKAGE / KERNEL_FOLDER not in path.parents
    )


def compile_extension(again: bool = False, level: str | None = None, because: str = "") -> Path:
    """Compile the C++ extension unless it is cached. Returns the library's path.

    Args:
        again: True compiles even if the library is cached.
        level: CPU level for a wheel (``compiler_flags``); None for this machine's CPU.
        because: why it is compiled; printed while the user waits.
    """
    import nanobind

    text = prebuilt.text_hash(*map(unit_text, COMPILATION_UNITS))
    sources = cache_directory() / f"{NAME}-{text}"  # one folder per version
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
        compiler_flags(level),
        compiler="c++",
        depends=extension_headers(),
        include=[PACKAGE],  # for ``#include "ops/cpu/node.h"`` in any folder
        duration="10 to 20 seconds, longer on a busy machine" + (f": {because}" if because else ""),
        again=again,
        source_flags={glue: ["-O1"]},  # its speed doesn't matter; -O3 takes 2 seconds longer
    )


def _check_types(module: ModuleType) -> None:
    """Raise TypeError if the extension doesn't accept MLX arrays.

    If MLX and the extension were built with different versions of nanobind's internals, the
    extension loads but rejects every array. This call only builds a graph and computes nothing.
    """
    module.gelu_forward(mx.zeros(1))


def _older_mlx() -> str:
    """Return a hint to install an older MLX, or "" if the installed MLX isn't too new."""
    installed = tuple(int(number) for number in re.findall(r"\d+", version("mlx"))[:2])
    if installed <= NEWEST_MLX:
        return ""
    major, minor = NEWEST_MLX
    return f"pip install 'mlx<{major}.{minor + 1}', or a newer puffer_mlx"


def _compiler_or_older_mlx() -> str:
    """Return a hint to install a compiler; if MLX is too new, also to install an older MLX."""
    return "; or ".join(filter(None, (compiler_hint(cpp=True), _older_mlx())))


def _print_fallback(reason: str, hint: str) -> None:
    print(
        f"puffer_mlx: training on the CPU will be several times slower: {reason}; hint: {hint}",
        file=sys.stderr,
    )


def count_cores() -> int:
    """Return the number of CPU cores this process may use; on a Mac only performance cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return mac.performance_cores() or os.cpu_count() or 1
