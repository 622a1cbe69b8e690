"""CPU operations as lazy graph nodes, in C++: built at first use, cached.

``cpu/`` has what all of them share. An operation's, or a network's, own C++ lies in its folder: a
``binding.h`` there adds it to the extension (``cpu/binding.h`` says how), and nothing else does.

MLX's CPU backend runs elementwise operations on one thread and without vector transcendentals; the
recurrence's gates cost more there than all matrix products together. The extension does gates,
recurrence and highway in one pass over memory on the cores that its stream has (measurements:
``benchmarks/RESULTS.md``). It needs a C++20 compiler; without one, everything works through pure
MLX, only slower, and one line on standard error says so.
"""

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import sys
import sysconfig
import threading
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.system import mac, private_folders
from puffer_mlx.system.blas import take_over_gemm
from puffer_mlx.system.compiler import cache_directory, compile_shared, load_compiled
from puffer_mlx.system.files import publish
from puffer_mlx.system.install_hints import compiler_hint

NANOBIND = "nanobind>=3.0.1,<3.2"  # as pyproject.toml; MLX 0.32.4 has the internals of these
PACKAGE = Path(__file__).parents[1]
ROOMS = ("ops", "policy", "ppo")  # where operations lie
_BINDING = PACKAGE / "ops" / "cpu" / "binding.h"


def _cpu_identity() -> str:
    """Changes whenever code built with ``-march=native`` may stop running here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(features.encode()).hexdigest()[:16]


def _flags() -> list[str]:
    import nanobind

    root, package = Path(nanobind.__file__).parent, Path(mx.__file__).parent
    identity = f"{version('mlx')},{nanobind.__version__},{sysconfig.get_config_var('SOABI')}"
    flags = [
        "-std=c++20",
        "-O3",
        "-fvisibility=hidden",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-DNB_DOMAIN=mlx",
        f'-DPUFFER_BUILT_FOR="{identity},{_cpu_identity()}"',
        f"-I{root / 'include'}",
        f"-I{root / 'ext' / 'robin_map' / 'include'}",
        f"-I{package / 'include'}",
        f"-I{sysconfig.get_paths()['include']}",
        f"-L{package / 'lib'}",
        "-lmlx",
        f"-Wl,-rpath,{package / 'lib'}",
    ]
    if mac.on_a_mac():
        return [*flags, "-undefined", "dynamic_lookup"]
    if platform.machine() == "x86_64":
        return [*flags, "-march=native", "-mprefer-vector-width=512"]
    return [*flags, "-mcpu=native"]


_loading = threading.Lock()  # a learner and a collector may ask at the same time


def load() -> ModuleType | None:
    """The extension, or None (saying so once) where it can't be had."""
    with _loading:
        return _load()


@functools.cache
def _load() -> ModuleType | None:
    if "PUFFER_MLX_NO_CPU_OPS" in os.environ:
        return None
    try:
        module = _build()
        _try(module)
    except (ImportError, UserError) as error:
        reason = str(error).splitlines()[0].rstrip(":")
        return _without(reason, compiler_hint(cpp=True))
    except TypeError:
        reason = f"nanobind {version('nanobind')} isn't of the kind that MLX {version('mlx')} uses"
        return _without(reason, f"pip install '{NANOBIND}', of the kind that MLX 0.32.4 uses")
    module.set_threads(threads())
    product = take_over_gemm()
    if product.address:
        module.set_gemm(product.address, product.split)
    return module


def _build() -> ModuleType:
    return load_compiled(_compile, _import)


def _import(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader("cpu_ops", str(path))
    spec = importlib.util.spec_from_loader("cpu_ops", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def write_source(folder: Path, package: Path = PACKAGE) -> Path:
    """Write the extension's source into ``folder``.

    What is there already stays: a start writes nothing, also where the disk is full.
    """
    source, text = folder / "cpu_ops.cpp", source_text(package)
    if not source.is_file() or source.read_text() != text:
        with publish(source) as partial:
            partial.write_text(text)
    return source


def source_text(package: Path = PACKAGE) -> str:
    """The extension's source: lines that include what operations bring."""
    bindings = [path for path in headers(package) if path.name == "binding.h" and path != _BINDING]
    names = [path.relative_to(package).as_posix() for path in bindings]
    return "".join(f'#include "{name}"\n' for name in (*names, "ops/cpu/module.h"))


def headers(package: Path = PACKAGE) -> list[Path]:
    """The C++ headers of the rooms that have operations, sorted."""
    found = [path for room in ROOMS for path in (package / room).rglob("*.h")]
    return sorted(path for path in found if not path.name.endswith(".metal.h"))


def _compile(again: bool = False) -> Path:
    import nanobind

    text = hashlib.sha256(source_text().encode()).hexdigest()[:12]
    sources = cache_directory() / f"cpu_ops-{text}"  # other versions have others
    try:
        private_folders.make(sources)
    except OSError as error:
        raise UserError(
            f"cpu_ops: can't write compiled libraries to {sources.parent}: {error.strerror}",
            "set PUFFER_MLX_CACHE to a folder you can write to",
        ) from None
    return compile_shared(
        "cpu_ops",
        [write_source(sources), Path(nanobind.__file__).parent / "src" / "nb_combined.cpp"],
        _flags(),
        compiler="c++",
        depends=headers(),
        include=[PACKAGE],  # ``#include "ops/cpu/node.h"`` in whatever folder
        usually="half a minute",
        again=again,
    )


def _try(module: ModuleType) -> None:
    """Raise TypeError if the extension knows no MLX array: its nanobind isn't of MLX's kind.

    Extensions see each other's types only if both were built with the same version of nanobind's
    internals; else they load, and refuse every argument. Nothing is evaluated here.
    """
    module.gelu_forward(mx.zeros(1))


def _without(reason: str, hint: str) -> None:
    print(
        f"puffer_mlx: training on the CPU will be three times slower: {reason}; hint: {hint}",
        file=sys.stderr,
    )


def threads() -> int:
    """Cores this process may use; of a Mac, those for performance."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return mac.performance_cores() or os.cpu_count() or 1
