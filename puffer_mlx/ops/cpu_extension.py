"""CPU operations as lazy graph nodes, in C++: of the wheel, or built at first use and cached.

``cpu/`` has what all of them share. An operation's, or a network's, own C++ lies in its folder:
lines of its headers add it to the extension (``cpu/binding.h`` says how), and nothing else does.

MLX's CPU backend runs elementwise operations on one thread and without vector transcendentals; the
recurrence's gates cost more there than all matrix products together. The extension does gates,
recurrence and highway in one pass over memory on the cores that its stream has (measurements:
``benchmarks/RESULTS.md``). A wheel of one platform brings it compiled (``system/prebuilt.py``);
elsewhere it needs a C++20 compiler. Without either, everything works through pure MLX, only slower,
and one line on standard error says so. Which of them it is stays so for a run: they differ in the
last bits.
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
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.system import mac, prebuilt, private_folders, voice
from puffer_mlx.system.blas import take_over_gemm
from puffer_mlx.system.compiler import compile_shared, compiler_hint, load_compiled
from puffer_mlx.system.files import publish
from puffer_mlx.system.private_folders import cache_directory

NAME = "cpu_ops"
NANOBIND = "nanobind>=3.0.1,<3.2"  # as pyproject.toml; MLX 0.32.4 has the internals of these
PACKAGE = Path(__file__).parents[1]
UNITS = (("ops", "policy"), ("ppo",))  # what is compiled as one, beside the others: equal times
MODULE, TEXTS = Path("ops/cpu/module.h"), Path("ops/gpu")  # what is last, and what isn't C++


def _cpu_identity() -> str:
    """Changes whenever code built with ``-march=native`` may stop running here."""
    features = " ".join(sorted(prebuilt.cpu_features())) or platform.processor()
    return hashlib.sha256(features.encode()).hexdigest()[:16]


def made_for() -> dict[str, str]:
    """What a compiled extension belongs to, besides a kind of CPU."""
    texts = [text for path in headers() for text in (path.name, path.read_bytes())]
    return {
        "MLX": version("mlx"),
        "Python": sysconfig.get_config_var("SOABI"),
        "sources": prebuilt.digest_of(texts),
    }


def flags(level: str | None = None) -> list[str]:
    """The compiler's and the linker's.

    Args:
        level: for what CPUs, as in ``prebuilt.LEVELS``; such a library finds MLX's from where a
            wheel puts both. None: for this machine's.
    """
    import nanobind

    root, package = Path(nanobind.__file__).parent, Path(mx.__file__).parent
    identity = f"{version('mlx')},{nanobind.__version__},{sysconfig.get_config_var('SOABI')}"
    beside = "@loader_path" if mac.on_a_mac() else "$ORIGIN"
    mlx_library = package / "lib" if level is None else f"{beside}/../../mlx/lib"
    flags = [
        "-std=c++20",
        "-O3",
        "-fvisibility=hidden",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-DNB_DOMAIN=mlx",
        f'-DPUFFER_BUILT_FOR="{identity},{_cpu_identity() if level is None else level}"',
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


_loading = threading.Lock()  # a learner and a collector may ask at the same time


@functools.cache
def load() -> ModuleType | None:
    """Return the extension; None if there is none, which one line of output reports."""
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
        hint = error.hint if "mlx==" in error.hint else compiler_hint(cpp=True)
        return _without(error.message.splitlines()[0].rstrip(":"), hint)
    except ImportError as error:
        return _without(str(error).splitlines()[0], compiler_hint(cpp=True))
    except TypeError:
        reason = f"nanobind {version('nanobind')} isn't of the kind that MLX {version('mlx')} uses"
        return _without(reason, f"pip install '{NANOBIND}', of the kind that MLX 0.32.4 uses")
    module.set_threads(threads())
    product = take_over_gemm()
    if product.address:
        module.set_gemm(product.address, product.split)
    return module


def _build() -> ModuleType:
    """What came with the package, if it is for this machine; else what a compiler makes here."""
    library = prebuilt.find(NAME, made_for())
    why = library.why_not
    if library.path:
        try:
            module = _import(library.path)
            _try(module)
            voice.detail(f"operations  {library.path}")
            return module
        except (ImportError, TypeError) as error:
            why = f"the one that came with puffer_mlx doesn't load: {str(error).splitlines()[0]}"
    try:
        return load_compiled(functools.partial(compile_extension, because=why), _import)
    except UserError as error:
        other = library.made_for.get("MLX")
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
    """Write the extension's sources into ``folder``.

    What is there already stays: a start writes nothing, also where the disk is full.
    """
    texts = {folder / f"{NAME}_{'_'.join(unit)}.cpp": unit_text(unit) for unit in UNITS}
    for source, text in texts.items():
        if not source.is_file() or source.read_text() != text:
            with publish(source) as partial:
                partial.write_text(text)
    return [*texts]


def unit_text(unit: Sequence[str]) -> str:
    """One of the extension's sources: lines that include the headers of some rooms."""
    paths = [path.relative_to(PACKAGE) for path in headers()]
    included = [path for path in paths if path.parts[0] in unit and path != MODULE]
    included += [MODULE] if unit == UNITS[-1] else []
    return "".join(f'#include "{path.as_posix()}"\n' for path in included)


def headers() -> list[Path]:
    """The C++ headers of the rooms that have operations, sorted."""
    paths = [path for unit in UNITS for room in unit for path in (PACKAGE / room).rglob("*.h")]
    return sorted(
        path
        for path in paths
        if not path.name.endswith((".metal.h", ".kernel.h")) and PACKAGE / TEXTS not in path.parents
    )


def compile_extension(again: bool = False, level: str | None = None, because: str = "") -> Path:
    """Compile the extension, if that wasn't done before, and return the library.

    Args:
        again: even if it was done before.
        level: for what CPUs, as ``flags`` has it.
        because: why that is necessary, for whoever waits.
    """
    import nanobind

    text = hashlib.sha256("\n".join(map(unit_text, UNITS)).encode()).hexdigest()[:12]
    sources = cache_directory() / f"{NAME}-{text}"  # other versions have others
    try:
        private_folders.make(sources)
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
        include=[PACKAGE],  # ``#include "ops/cpu/node.h"`` in whatever folder
        usually="10 to 20 seconds" + (f": {because}" if because else ""),
        again=again,
        further={glue: ["-O1"]},  # it computes nothing, and -O3 takes 2 seconds more
    )


def _try(module: ModuleType) -> None:
    """Raise TypeError if the extension knows no MLX array: its nanobind isn't of MLX's kind.

    Extensions see each other's types only if both were built with the same version of nanobind's
    internals; else they load, and refuse every argument. Nothing is evaluated here.
    """
    module.gelu_forward(mx.zeros(1))


def _without(reason: str, hint: str) -> None:
    print(
        f"puffer_mlx: training on the CPU will be several times slower: {reason}; hint: {hint}",
        file=sys.stderr,
    )


def threads() -> int:
    """Cores this process may use; of a Mac, those for performance."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return mac.performance_cores() or os.cpu_count() or 1
