"""Read the sources of kernels, which are shared by Metal and CUDA (``*.metal.h``).

Such a file is C++ with Metal's keywords; ``functions.metal.h`` documents the available functions.
MLX generates a kernel's signature from the names of its arrays, its body and the code before it.
These are taken from the kernel's declaration in the source::

    KERNEL name<Low, N>: Low x, float not_done states, int sizes -> Low y {
      ...
    }

Angle brackets contain template parameters: types such as ``Low``, and integers. Some control the
compilation for CUDA: ``FAST`` (approximate exp and division, as on Metal), ``RESIDENT`` (resident
threads per core, in blocks of ``THREADS``), ``CLUSTER`` (blocks that run together). Types and names
of inputs follow, then of outputs. An input of parameters lists their names, ``int sizes{T S}``: the
kernel reads ``sizes.T``, and ``launch`` gets them by name. The kernel ends at the first line that
is a lone brace. Equations shared with the C++ extension are in files that both include
(``ops/portable.h``).
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
INCLUDED_FROM = FOLDER.parent  # ``#include "gpu/functions.metal.h"`` works in any folder
LAYERS = "layers.metal.h"  # a network's layers in the kernels of acting/
ROWS = "rows.metal.h"  # a network's layers on matrix units
WALKS = "walks.metal.h"  # a network's passes through time in the minibatch kernels
ENVIRONMENTS = FOLDER / "acting" / "environments.kernel.h"  # environment steps only
PORTABLE = "ops/portable.h"  # on a GPU, functions.metal.h takes its place

_KERNEL, _ENDS = "\nKERNEL ", "\n}\n"
_LISTED = re.compile(r"(\w+)\{([^}]*)\}")  # a parameter array and the names of its values
_INCLUDE, _ONCE = '#include "', "#pragma once\n"
# Macros of environment headers that rules.kernel.h defines (the last three: their earlier names).
_ENV_MACROS = {"ENV_FN", "ENV_PTR", "ENV_ROWS", "TABLE", "RULE", "OWN", "ROW"}
_ASKED = "BEGIN_STAGES"  # macro that a kernel tests, envs/include/vecenv.h
_GAME = "game"  # the namespace of an environment's rules


class Kernel(NamedTuple):
    """A kernel's source."""

    name: str
    before: str  # code before the kernel: functions that it calls
    body: str
    template: tuple[str, ...]  # names of types (Low) and constants; may be empty
    inputs: dict[str, str]  # types of the input arrays by name: see launch.py
    outputs: dict[str, str]  # types of the output arrays by name
    parameters: dict[str, tuple[str, ...]]  # names of the values of inputs that list them
    exact: bool = False  # True to round products and sums separately, as on a CPU
    fast: bool = False  # True for approximate exp and division on CUDA, as on Metal
    resident: int = 0  # resident threads per CUDA core, which limits registers; 0: no limit


class ComposedKernel(NamedTuple):
    """A kernel's file, compiled after a file of a network's folder with functions that it calls."""

    kernel: Path
    network: Path


class EnvRules(NamedTuple):
    """An environment's rules, from MY_GPU in ``binding.c``: see envs/include/vecenv.h."""

    header: Path
    struct: str
    masked: bool


def expand(path: Path) -> str:
    """Return a file's text with includes expanded, from its folder or from ``ops/``."""
    return _expand(path, set(), {})


def _expand(path: Path, seen: set[Path], parts: Mapping[str, str]) -> str:
    text = path.read_text()
    if _ONCE in text:
        if path in seen:
            return ""
        seen.add(path)
        text = text.replace(_ONCE, "")

    def included(line: str) -> str:
        if not line.startswith(_INCLUDE):
            return line
        name = line.split('"')[1]
        return parts[name] if name in parts else _expand(_included(path, name), seen, parts)

    return "".join(map(included, text.splitlines(keepends=True)))


def _included(path: Path, name: str) -> Path:
    """Return the path of the file that ``path`` includes as ``name``."""
    if name == PORTABLE:
        return FOLDER / "functions.metal.h"
    beside = path.parent / name
    return beside if beside.is_file() else INCLUDED_FROM / name


@functools.cache
def kernels(path: Path | ComposedKernel, backend: str) -> dict[str, Kernel]:
    """Return a file's kernels for ``metal`` or ``cuda``, by name.

    The kernel around a network's ``layers.metal.h`` is named ``{folder}_act``. Kernels of a
    ``ComposedKernel`` are named ``{folder}_{kernel}``.
    """
    if isinstance(path, ComposedKernel):
        return {kernel.name: kernel for kernel in _composed(path, backend)}
    if path.name == LAYERS:
        (step,) = _kernels(_around(path, "act.kernel.h", {}), backend)
        step = step._replace(name=f"{path.parent.name}_act")
        return {step.name: step}
    return {kernel.name: kernel for kernel in _kernels(expand(path), backend)}


def _composed(path: ComposedKernel, backend: str) -> list[Kernel]:
    seen: set[Path] = set()
    before = _expand(path.network, seen, {})
    found = _kernels(before + _expand(path.kernel, seen, {}), backend)
    return [each._replace(name=f"{path.network.parent.name}_{each.name}") for each in found]


@functools.cache
def rollout(layers: Path, rules: EnvRules, backend: str) -> Kernel:
    """Return the kernel of rollouts: see ``acting/rollout.kernel.h``, ``acting/rows.kernel.h``.

    Args:
        layers: path of the network's ``layers.metal.h`` or ``rows.metal.h``.
        rules: the environment's rules.
        backend: ``metal`` or ``cuda``.
    """
    form = "rows" if layers.name == ROWS else "rollout"
    text = _around(layers, f"{form}.kernel.h", {"rules": in_namespace(rules)})
    (kernel,) = _kernels(text, backend)
    name = f"{form}_{layers.parent.name}_{rules.header.stem}"
    return kernel._replace(name=name, exact=True, fast=False)


@functools.cache
def environments(rules: EnvRules, backend: str) -> Kernel:
    """Return the kernel that only steps environments: see ``acting/environments.kernel.h``."""
    text = _expand(ENVIRONMENTS, set(), {"rules": in_namespace(rules)})
    (kernel,) = _kernels(text, backend)
    return kernel._replace(name=f"step_{rules.header.stem}", exact=True)


def _around(layers: Path, kernel: str, parts: Mapping[str, str]) -> str:
    """Return the text of a kernel in ``acting/`` with a network's layers."""
    seen: set[Path] = set()
    parts = {layers.name.partition(".")[0]: _expand(layers, seen, {}), **parts}
    return _expand(FOLDER / "acting" / kernel, seen, parts)


def in_namespace(rules: EnvRules) -> str:
    """Return an environment's header in a namespace, with its macros undefined at the end."""
    text = expand(rules.header)
    words = (line.replace("#", " # ").replace("(", " ").split() for line in text.splitlines())
    defined = {line[2] for line in words if line[:2] == ["#", "define"]}
    ends = "".join(f"#undef {name}\n" for name in sorted(defined - _ENV_MACROS - {_ASKED}))
    masked = "#define MASKED\n" if rules.masked else ""
    contract = "#ifdef __METAL_VERSION__\n#pragma METAL fp contract(fast)\n#endif\n"
    game = f"using Game = {_GAME}::{rules.struct};\n"
    return f"namespace {_GAME} {{\n{text}}}\n{ends}{contract}{masked}{game}"


def _head(backend: str) -> tuple[str, str]:
    """Return a backend's code before a kernel and at the start of its body."""
    before, _, begin = (FOLDER / f"{backend}.h").read_text().partition(f"{_KERNEL}begin {{\n")
    return before, begin.removesuffix("}\n")


def _kernels(text: str, backend: str) -> list[Kernel]:
    """Return the kernels in a text whose includes are expanded."""
    before, begin = _head(backend)
    before += _renamed(text) if backend == "metal" else ""
    first, *texts = f"\n{text}".split(_KERNEL)
    kernels, before = [], before + first
    for each in texts:
        head, _, rest = each.partition(" {\n")
        body, _, after = f"\n{rest}".partition(_ENDS)
        kernels.append((head, body[1:] + "\n"))
        before += f"\n{after}"
    return [_kernel(head, before, begin + body) for head, body in kernels]


def _renamed(text: str) -> str:
    """Return macros that rename functions and structs to avoid conflicts with Metal's library.

    MLX imports all names of the library, and new versions add names (MSL 4.1 in macOS 27).
    """
    names = sorted({_GAME, *filter(None, map(_defined, text.splitlines()))})
    return "".join(f"#define {name} puffer_{name}\n" for name in names)


def _defined(line: str) -> str:
    """Return the name of the function, struct, union or type defined in a line, or ``""``."""
    if line.startswith(("FUNCTION ", "ENV_FN ", "RULE ", "CALLED ")) and "(" in line:
        return line.partition("(")[0].split()[-1].lstrip("*&")
    if line.startswith("struct alignas("):
        line = "struct " + line.partition(") ")[2]
    words = line.split()
    if line.startswith(("struct ", "union ")) and len(words) > 2:
        return words[1]
    return words[1] if line.startswith("using ") and " = " in line else ""


def _kernel(head: str, before: str, body: str) -> Kernel:
    listed = {name: tuple(names.split()) for name, names in _LISTED.findall(head)}
    for name, names in listed.items():
        for index, each in enumerate(names):
            body = re.sub(rf"\b{name}\.{each}\b", f"{name}[{index}]", body)
    name, _, arrays = " ".join(_LISTED.sub(r"\1", head).split()).partition(":")
    name, _, template = name.rstrip(">").partition("<")
    inputs, outputs = map(_arrays, arrays.split("->"))
    template = tuple(template.split(", ") if template else ())
    # A block with a SHARED_POOL is alone on its CUDA core and may use all registers.
    pool, fast = "POOL" in template, "FAST" in template
    given = name, before, body, template, inputs, outputs, listed
    return Kernel(*given, fast=pool or fast, resident=int(pool))


def _arrays(text: str) -> dict[str, str]:
    """Parse a list of arrays such as ``Low x, float not_done states`` into types by name."""
    groups = (group.split() for group in text.split(","))
    return {name: type_ for type_, *names in groups for name in names}
