"""Read the source files of kernels (``*.metal.h``), which Metal and CUDA share.

A source file is C++ with Metal's keywords; ``functions.metal.h`` documents the available functions.
MLX needs a kernel's body, the code before it, and the names of its arrays, from which it generates
the signature. They are read from the kernel's declaration::

    KERNEL name<Low, N>: Low x, float not_done states, int sizes -> Low y {
      ...
    }

Angle brackets contain template parameters: types such as ``Low``, and integers. Some control the
compilation for CUDA: ``FAST`` (approximate exp and division, as on Metal), ``RESIDENT`` (resident
threads per core, in blocks of ``THREADS``), ``CLUSTER`` (blocks that run together). After the colon
come types and names of the inputs, after the arrow those of the outputs. An array of parameters
lists their names, ``int sizes{T S}``: the kernel reads ``sizes.T``, and the caller of ``launch``
passes them by name. The kernel ends at the first line that has only a closing brace. Equations
shared with the C++ extension are in files that both include (``ops/portable.h``).
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
INCLUDE_FOLDER = FOLDER.parent  # ``#include "gpu/functions.metal.h"`` works in any folder
LAYERS_FILE = "layers.metal.h"  # a network's layers for the kernels of acting/
ROWS_FILE = "rows.metal.h"  # a network's layers for matrix units
WALKS_FILE = "walks.metal.h"  # a network's passes through time for the minibatch kernels
ENVIRONMENTS_FILE = FOLDER / "acting" / "environments.kernel.h"  # steps environments, no policy
PORTABLE = "ops/portable.h"  # for the C++ extension; kernels include functions.metal.h instead

_KERNEL_START, _KERNEL_END = "\nKERNEL ", "\n}\n"
_PARAMETER_ARRAY = re.compile(r"(\w+)\{([^}]*)\}")  # name of the array, names of its values
_INCLUDE, _PRAGMA_ONCE = '#include "', "#pragma once\n"
# Macros that rules.kernel.h defines for environment headers. The last three are earlier names.
_ENV_MACROS = {"ENV_FN", "ENV_PTR", "ENV_ROWS", "TABLE", "RULE", "OWN", "ROW"}
_STAGES_MACRO = "BEGIN_STAGES"  # a kernel tests whether it is defined (envs/include/vecenv.h)
_RULES_NAMESPACE = "game"  # namespace of an environment's rules


class KernelSource(NamedTuple):
    """A kernel's source, split into the pieces that MLX needs to compile it."""

    name: str
    header: str  # code before the kernel: the functions that it calls
    body: str
    template: tuple[str, ...]  # names of types (Low) and constants; may be empty
    inputs: dict[str, str]  # types of the input arrays by name (launch.py)
    outputs: dict[str, str]  # types of the output arrays by name
    parameters: dict[str, tuple[str, ...]]  # names of the values in each parameter array
    exact: bool = False  # True to round products and sums separately, as on a CPU
    fast: bool = False  # True for approximate exp and division on CUDA, as on Metal
    resident: int = 0  # resident threads per CUDA core, which limits registers; 0 for no limit


class ComposedKernel(NamedTuple):
    """A kernel's file and a network's file with the functions that the kernel calls."""

    kernel: Path
    network: Path


class EnvRules(NamedTuple):
    """An environment's rules for kernels, from MY_GPU in ``binding.c`` (envs/include/vecenv.h)."""

    header: Path  # file with the rules
    struct: str  # name of the environment's struct
    masked: bool  # True if the environment has action masks


def expand(path: Path) -> str:
    """Return a kernel file's text with all includes expanded, from its folder or ``ops/``."""
    return _expand(path, set(), {})


def _expand(path: Path, seen: set[Path], replacements: Mapping[str, str]) -> str:
    text = path.read_text()
    if _PRAGMA_ONCE in text:
        if path in seen:
            return ""
        seen.add(path)
        text = text.replace(_PRAGMA_ONCE, "")

    def included(line: str) -> str:
        if not line.startswith(_INCLUDE):
            return line
        name = line.split('"')[1]
        if name in replacements:
            return replacements[name]
        return _expand(_included(path, name), seen, replacements)

    return "".join(map(included, text.splitlines(keepends=True)))


def _included(path: Path, name: str) -> Path:
    """Return the path of the file that a kernel file ``path`` includes as ``name``."""
    if name == PORTABLE:
        return FOLDER / "functions.metal.h"
    beside = path.parent / name
    return beside if beside.is_file() else INCLUDE_FOLDER / name


@functools.cache
def read_kernels(path: Path | ComposedKernel, backend: str) -> dict[str, KernelSource]:
    """Read the kernels of a source file for ``metal`` or ``cuda``. Returns them by name.

    The kernel around a network's ``layers.metal.h`` is named ``{folder}_act``. Kernels of a
    ``ComposedKernel`` are named ``{folder}_{kernel}``.
    """
    if isinstance(path, ComposedKernel):
        return {kernel.name: kernel for kernel in _composed(path, backend)}
    if path.name == LAYERS_FILE:
        (step,) = _kernels(_with_layers(path, "act.kernel.h", {}), backend)
        step = step._replace(name=f"{path.parent.name}_act")
        return {step.name: step}
    return {kernel.name: kernel for kernel in _kernels(expand(path), backend)}


def _composed(path: ComposedKernel, backend: str) -> list[KernelSource]:
    seen: set[Path] = set()
    network = _expand(path.network, seen, {})
    kernels = _kernels(network + _expand(path.kernel, seen, {}), backend)
    return [each._replace(name=f"{path.network.parent.name}_{each.name}") for each in kernels]


@functools.cache
def rollout_kernel(layers: Path, rules: EnvRules, backend: str) -> KernelSource:
    """Return the kernel that runs complete rollouts of a network in an environment.

    It is in ``acting/rollout.kernel.h`` or, for matrix units, in ``acting/rows.kernel.h``.

    Args:
        layers: path of the network's ``layers.metal.h`` or ``rows.metal.h``.
        rules: the environment's rules.
        backend: ``metal`` or ``cuda``.
    """
    kind = "rows" if layers.name == ROWS_FILE else "rollout"
    text = _with_layers(layers, f"{kind}.kernel.h", {"rules": in_namespace(rules)})
    (kernel,) = _kernels(text, backend)
    name = f"{kind}_{layers.parent.name}_{rules.header.stem}"
    return kernel._replace(name=name, exact=True, fast=False)


@functools.cache
def environment_kernel(rules: EnvRules, backend: str) -> KernelSource:
    """Return the kernel that steps all environments once; the policy acts in other kernels."""
    text = _expand(ENVIRONMENTS_FILE, set(), {"rules": in_namespace(rules)})
    (kernel,) = _kernels(text, backend)
    return kernel._replace(name=f"step_{rules.header.stem}", exact=True)


def _with_layers(layers: Path, kernel: str, replacements: Mapping[str, str]) -> str:
    """Return the text of a kernel in ``acting/`` with a network's layers inserted."""
    seen: set[Path] = set()
    replacements = {layers.name.partition(".")[0]: _expand(layers, seen, {}), **replacements}
    return _expand(FOLDER / "acting" / kernel, seen, replacements)


def in_namespace(rules: EnvRules) -> str:
    """Return an environment's header wrapped in a namespace, with its macros undefined after it."""
    text = expand(rules.header)
    words = (line.replace("#", " # ").replace("(", " ").split() for line in text.splitlines())
    defined = {line[2] for line in words if line[:2] == ["#", "define"]}
    ends = "".join(f"#undef {name}\n" for name in sorted(defined - _ENV_MACROS - {_STAGES_MACRO}))
    masked = "#define MASKED\n" if rules.masked else ""
    contract = "#ifdef __METAL_VERSION__\n#pragma METAL fp contract(fast)\n#endif\n"
    game = f"using Game = {_RULES_NAMESPACE}::{rules.struct};\n"
    return f"namespace {_RULES_NAMESPACE} {{\n{text}}}\n{ends}{contract}{masked}{game}"


def _head(backend: str) -> tuple[str, str]:
    """Return the code that a backend needs before a kernel and at the start of its body."""
    header, _, begin = (FOLDER / f"{backend}.h").read_text().partition(f"{_KERNEL_START}begin {{\n")
    return header, begin.removesuffix("}\n")


def _kernels(text: str, backend: str) -> list[KernelSource]:
    """Parse the kernels in a source text whose includes are expanded."""
    header, begin = _head(backend)
    header += _renaming_macros(text) if backend == "metal" else ""
    first, *texts = f"\n{text}".split(_KERNEL_START)
    header += first
    kernels = []
    for each in texts:
        head, _, rest = each.partition(" {\n")
        body, _, after = f"\n{rest}".partition(_KERNEL_END)
        kernels.append((head, body[1:] + "\n"))
        header += f"\n{after}"
    return [_kernel(head, header, begin + body) for head, body in kernels]


def _renaming_macros(text: str) -> str:
    """Return macros that rename a kernel file's functions and structs, to avoid name conflicts.

    MLX imports all names of Metal's library, and new versions add names (MSL 4.1 in macOS 27).
    """
    names = sorted({_RULES_NAMESPACE, *filter(None, map(_defined_name, text.splitlines()))})
    return "".join(f"#define {name} puffer_{name}\n" for name in names)


def _defined_name(line: str) -> str:
    """Return the name of the function, struct, union or type that a line defines, or ""."""
    if line.startswith(("FUNCTION ", "ENV_FN ", "RULE ", "CALLED ")) and "(" in line:
        return line.partition("(")[0].split()[-1].lstrip("*&")
    if line.startswith("struct alignas("):
        line = "struct " + line.partition(") ")[2]
    words = line.split()
    if line.startswith(("struct ", "union ")) and len(words) > 2:
        return words[1]
    return words[1] if line.startswith("using ") and " = " in line else ""


def _kernel(head: str, header: str, body: str) -> KernelSource:
    parameters = {name: tuple(names.split()) for name, names in _PARAMETER_ARRAY.findall(head)}
    for name, names in parameters.items():
        for index, each in enumerate(names):
            body = re.sub(rf"\b{name}\.{each}\b", f"{name}[{index}]", body)
    name, _, arrays = " ".join(_PARAMETER_ARRAY.sub(r"\1", head).split()).partition(":")
    name, _, template = name.rstrip(">").partition("<")
    inputs, outputs = map(_arrays, arrays.split("->"))
    template = tuple(template.split(", ") if template else ())
    # A block with a SHARED_POOL is alone on its CUDA core and may use all registers.
    pool, fast = "POOL" in template, "FAST" in template
    pieces = name, header, body, template, inputs, outputs, parameters
    return KernelSource(*pieces, fast=pool or fast, resident=int(pool))


def _arrays(text: str) -> dict[str, str]:
    """Parse a list of arrays such as ``Low x, float not_done states`` into types by name."""
    groups = (group.split() for group in text.split(","))
    return {name: type_ for type_, *names in groups for name in names}
