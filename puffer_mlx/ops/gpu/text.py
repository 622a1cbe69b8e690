"""The texts of kernels: files of their own language, one for Metal and CUDA (``*.metal.h``).

Such a file is C++ with Metal's words; ``functions.metal.h`` says what it may use. MLX writes a
kernel's declaration itself, and compiles it at first use: it is given the names of arrays, the
body, and what goes before the kernel. A kernel is described where it begins, and nowhere else::

    KERNEL name<Low, N>: Low x, float keep states, int sizes -> Low y {
      ...
    }

What is in angle brackets are its template's names: types, as ``Low``, and numbers. Some say on CUDA
how it is compiled: ``FAST`` (exp and quotients are approximate, as Metal's are), ``RESIDENT``
(threads that a core holds at a time, in blocks of ``THREADS``), ``CLUSTER`` (blocks that run
together). Then follow types and names of the arrays that it reads, and of those that it writes. Its
last line is the first that is a brace alone. An equation that C++ computes as well is in a file
that both include (``ops/portable.h``).
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
INCLUDED_FROM = FOLDER.parent  # ``#include "gpu/functions.metal.h"`` in a file of whatever folder
LAYERS = "layers.metal.h"  # of a network: a part of the kernels in acting
ROWS = "rows.metal.h"  # the same of many rows, by matrix units
MINIBATCH = "minibatch.metal.h"  # of a network: what a minibatch's kernel needs before it
PARTS = "forward", "back"  # of a layer
ENVIRONMENTS = FOLDER / "acting" / "environments.kernel.h"  # their step, without a policy's
PORTABLE = "ops/portable.h"  # on a GPU, functions.metal.h takes its place

_KERNEL, _ENDS = "\nKERNEL ", "\n}\n"
_INCLUDE, _ONCE = '#include "', "#pragma once\n"
# Macros of environment headers that rules.kernel.h defines (the last three: their earlier names).
_ENV_MACROS = {"ENV_FN", "ENV_PTR", "ENV_ROWS", "TABLE", "RULE", "OWN", "ROW"}
_ASKED = "BEGIN_STAGES"  # of an environment: what a kernel asks, envs/include/vecenv.h
_GAME = "game"  # the namespace of an environment's rules


class Kernel(NamedTuple):
    """A kernel's text."""

    name: str
    before: str  # what goes before the kernel: functions that it calls
    body: str
    template: tuple[str, ...]  # names: types, as Low, and numbers; a kernel may do without
    inputs: dict[str, str]  # names and types of the arrays that are read: see launch.py
    outputs: dict[str, str]  # and of those that are written
    exact: bool = False  # whether products and sums are rounded one by one, as on a CPU
    fast: bool = False  # whether CUDA's exp and quotients are approximate, as Metal's are
    resident: int = 0  # threads that a core of CUDA holds at a time, by few enough registers each


class Composed(NamedTuple):
    """A kernel's file that is compiled behind a file of a network's folder.

    The kernel includes a layer's passes as ``forward`` and ``back``: ``forward.metal.h`` and
    ``back.metal.h`` of the network's folder.
    """

    kernel: Path
    network: Path


class Rules(NamedTuple):
    """An environment's rules, as its ``binding.c`` names them: MY_GPU of envs/include/vecenv.h."""

    header: Path
    struct: str
    masked: bool


def expand(path: Path) -> str:
    """A file's text, with those in place that it includes: from beside it, or from ``ops/``."""
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
    """The file that another one, at ``path``, includes by a name."""
    if name == PORTABLE:
        return FOLDER / "functions.metal.h"
    beside = path.parent / name
    return beside if beside.is_file() else INCLUDED_FROM / name


@functools.cache
def kernels(path: Path | Composed, backend: str) -> dict[str, Kernel]:
    """Return a file's kernels for ``metal`` or ``cuda``, by name.

    The kernel around a network's ``layers.metal.h`` is named ``{folder}_act``; the one behind its
    ``minibatch.metal.h`` is named ``{folder}_minibatch``.
    """
    if isinstance(path, Composed):
        return {kernel.name: kernel for kernel in _composed(path, backend)}
    if path.name == LAYERS:
        (step,) = _kernels(_around(path, "act.kernel.h", {}), backend)
        step = step._replace(name=f"{path.parent.name}_act")
        return {step.name: step}
    return {kernel.name: kernel for kernel in _kernels(expand(path), backend)}


def _composed(path: Composed, backend: str) -> list[Kernel]:
    folder = path.network.parent
    parts = {part: expand(folder / f"{part}.metal.h") for part in PARTS}
    seen: set[Path] = set()
    before = _expand(path.network, seen, {})
    found = _kernels(before + _expand(path.kernel, seen, parts), backend)
    if path.network.name != MINIBATCH:
        return found
    return [kernel._replace(name=f"{folder.name}_{kernel.name}") for kernel in found]


@functools.cache
def rollout(layers: Path, rules: Rules, backend: str) -> Kernel:
    """The kernel of whole rollouts: see ``acting/rollout.kernel.h`` and ``acting/rows.kernel.h``.

    Args:
        layers: the text of the network's layers, ``layers.metal.h`` of its folder, or ROWS.
        rules: the environment's.
        backend: ``metal`` or ``cuda``.
    """
    form = "rows" if layers.name == ROWS else "rollout"
    text = _around(layers, f"{form}.kernel.h", {"rules": in_namespace(rules)})
    (kernel,) = _kernels(text, backend)
    name = f"{form}_{layers.parent.name}_{rules.header.stem}"
    return kernel._replace(name=name, exact=True, fast=False)


@functools.cache
def environments(rules: Rules, backend: str) -> Kernel:
    """The kernel of an environment's steps alone: see ``acting/environments.kernel.h``."""
    text = _expand(ENVIRONMENTS, set(), {"rules": in_namespace(rules)})
    (kernel,) = _kernels(text, backend)
    return kernel._replace(name=f"step_{rules.header.stem}", exact=True)


def _around(layers: Path, kernel: str, parts: Mapping[str, str]) -> str:
    """The text of a kernel of ``acting`` with these layers."""
    seen: set[Path] = set()
    parts = {layers.name.partition(".")[0]: _expand(layers, seen, {}), **parts}
    return _expand(FOLDER / "acting" / kernel, seen, parts)


def in_namespace(rules: Rules) -> str:
    """An environment's header where its names can't meet the kernel's; its macros end with it."""
    text = expand(rules.header)
    words = (line.replace("#", " # ").replace("(", " ").split() for line in text.splitlines())
    defined = {line[2] for line in words if line[:2] == ["#", "define"]}
    ends = "".join(f"#undef {name}\n" for name in sorted(defined - _ENV_MACROS - {_ASKED}))
    masked = "#define MASKED\n" if rules.masked else ""
    contract = "#ifdef __METAL_VERSION__\n#pragma METAL fp contract(fast)\n#endif\n"
    game = f"using Game = {_GAME}::{rules.struct};\n"
    return f"namespace {_GAME} {{\n{text}}}\n{ends}{contract}{masked}{game}"


def _head(backend: str) -> tuple[str, str]:
    """What differs between the two: what goes before a kernel, and how its body begins."""
    before, _, begin = (FOLDER / f"{backend}.h").read_text().partition(f"{_KERNEL}begin {{\n")
    return before, begin.removesuffix("}\n")


def _kernels(text: str, backend: str) -> list[Kernel]:
    """Those of a text without includes."""
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
    """Macros that give functions and structs names that no version of Metal's library has.

    MLX makes all of the library's names known, and newer languages add some (MSL 4.1: macOS 27).
    """
    names = sorted({_GAME, *filter(None, map(_defined, text.splitlines()))})
    return "".join(f"#define {name} puffer_{name}\n" for name in names)


def _defined(line: str) -> str:
    """The name of the function, struct, union or type that a line begins to define, or ``""``."""
    if line.startswith(("FUNCTION ", "ENV_FN ", "RULE ", "CALLED ")) and "(" in line:
        return line.partition("(")[0].split()[-1].lstrip("*&")
    if line.startswith("struct alignas("):
        line = "struct " + line.partition(") ")[2]
    words = line.split()
    if line.startswith(("struct ", "union ")) and len(words) > 2:
        return words[1]
    return words[1] if line.startswith("using ") and " = " in line else ""


def _kernel(head: str, before: str, body: str) -> Kernel:
    name, _, arrays = " ".join(head.split()).partition(":")
    name, _, template = name.rstrip(">").partition("<")
    inputs, outputs = map(_arrays, arrays.split("->"))
    template = tuple(template.split(", ") if template else ())
    # One block of a kernel that asks for memory fills a core of CUDA: it may have all registers.
    pool, fast = "POOL" in template, "FAST" in template
    given = name, before, body, template, inputs, outputs
    return Kernel(*given, fast=pool or fast, resident=int(pool))


def _arrays(text: str) -> dict[str, str]:
    """Names and types: of ``Low x, float keep states``, say."""
    groups = (group.split() for group in text.split(","))
    return {name: type_ for type_, *names in groups for name in names}
