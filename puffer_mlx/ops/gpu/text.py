"""The texts of kernels: files of their own language, one for Metal and CUDA (``*.metal.h``).

Such a file is C++ with Metal's words; ``functions.metal.h`` says what it may use. MLX writes a
kernel's declaration itself, and compiles it at first use: it is given the names of arrays, the
body, and what goes before the kernel. All of them are read from the file, so what an array is
called, of which type it is and whether it is read or written is said once, in the kernel's
parameters. An equation that C++ computes as well is in a file that both include (``ops/words.h``).
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
INCLUDED_FROM = FOLDER.parent  # ``#include "gpu/functions.metal.h"`` in a file of whatever folder
LAYERS = "layers.metal.h"  # of a network: a part of the kernels in acting
WORDS = "ops/words.h"  # of a CPU, in a text that is C++'s as well; here functions.metal.h has them

_KERNEL = re.compile(
    r"^(?:template <(?P<template>[^>]*)>\n)?"
    r"kernel void (?P<name>\w+)\((?P<parameters>[^)]*)\) \{\n(?P<body>.*?)^\}\n",
    re.MULTILINE | re.DOTALL,
)
_INCLUDE = re.compile(r'^#include "(.*)"\n', re.MULTILINE)
_ONCE = "#pragma once\n"
_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
RESIDENT = 512  # of rollouts: with more they spill registers, with fewer they wait (H200)
_WORDS = {"RULE", "OWN", "ROW", "TABLE"}  # that rules are written with: a GPU has its own
_GAME = "game"  # the namespace of an environment's rules
_NAMED = re.compile(
    r"^(?:FUNCTION|RULE) [^(\n]*?(\w+)\(|^struct (?:alignas\(.*?\) )?(\w+) |^using (\w+) =",
    re.MULTILINE,
)


class Kernel(NamedTuple):
    """A kernel's text."""

    name: str
    before: str  # what goes before the kernel: functions that it calls
    body: str
    template: tuple[str, ...]  # names: Low, and numbers; a kernel may do without
    inputs: dict[str, str]  # names and types of the arrays that are read: see launch.py
    outputs: dict[str, str]  # and of those that are written
    exact: bool = False  # whether products and sums are rounded one by one, as on a CPU
    resident: int = 0  # threads that a core of CUDA holds at a time, by few enough registers each


class Rules(NamedTuple):
    """An environment's rules, as its ``binding.c`` names them: MY_GPU of envs/include/vecenv.h."""

    header: Path
    struct: str
    masked: bool


def expand(path: Path) -> str:
    """A file's text, with those in place that it includes: from beside it, or from ``ops/``."""
    return _expand(path, set(), {})


def _expand(path: Path, seen: set[Path], given: Mapping[str, str]) -> str:
    text = path.read_text()
    if _ONCE in text:
        if path in seen:
            return ""
        seen.add(path)
        text = text.replace(_ONCE, "")

    def included(found: re.Match[str]) -> str:
        if found[1] in given:
            return given[found[1]]
        return _expand(_included(path, found[1]), seen, given)

    return _INCLUDE.sub(included, text)


def _included(path: Path, name: str) -> Path:
    """The file that another one, at ``path``, includes by a name."""
    if name == WORDS:
        return FOLDER / "functions.metal.h"
    beside = path.parent / name
    return beside if beside.is_file() else INCLUDED_FROM / name


@functools.cache
def kernels(path: Path, backend: str) -> dict[str, Kernel]:
    """The kernels of a file for ``metal`` or ``cuda``, by name.

    Of a network's layers (``layers.metal.h``) it is ``{folder}_act``, a rollout's step.
    """
    if path.name == LAYERS:
        (step,) = _kernels(_around(path, "act.kernel.h", {}), backend)
        step = step._replace(name=f"{path.parent.name}_act")
        return {step.name: step}
    return {kernel.name: kernel for kernel in _kernels(expand(path), backend)}


@functools.cache
def rollout(layers: Path, rules: Rules, backend: str) -> Kernel:
    """The kernel of whole rollouts: see ``acting/rollout.kernel.h``.

    Args:
        layers: the text of the network's layers, ``layers.metal.h`` of its folder.
        rules: the environment's.
        backend: ``metal`` or ``cuda``.
    """
    text = _around(layers, "rollout.kernel.h", {"rules": in_namespace(rules)})
    (kernel,) = _kernels(text, backend)
    name = f"rollout_{layers.parent.name}_{rules.header.stem}"
    return kernel._replace(name=name, exact=True, resident=RESIDENT)


def _around(layers: Path, kernel: str, given: Mapping[str, str]) -> str:
    """The text of a kernel of ``acting`` with these layers."""
    seen: set[Path] = set()
    given = {"layers": _expand(layers, seen, {}), **given}
    return _expand(FOLDER / "acting" / kernel, seen, given)


def in_namespace(rules: Rules) -> str:
    """An environment's header where its names can't meet the kernel's; its macros end with it."""
    text = expand(rules.header)
    ends = "".join(f"#undef {name}\n" for name in sorted(set(_DEFINED.findall(text)) - _WORDS))
    masked = "#define MASKED\n" if rules.masked else ""
    contract = "#ifdef __METAL_VERSION__\n#pragma METAL fp contract(fast)\n#endif\n"
    game = f"using Game = {_GAME}::{rules.struct};\n"
    return f"namespace {_GAME} {{\n{text}}}\n{ends}{contract}{masked}{game}"


def _head(backend: str) -> tuple[str, str]:
    """What differs between the two: what goes before a kernel, and how its body begins."""
    before, _, begin = (FOLDER / f"{backend}.h").read_text().partition("kernel void begin() {\n")
    return before, begin.removesuffix("}\n")


def _kernels(text: str, backend: str) -> list[Kernel]:
    """Those of a text without includes."""
    before, begin = _head(backend)
    before += _renamed(text) if backend == "metal" else ""
    before += _KERNEL.sub("", text)
    return [_kernel(found, before, begin) for found in _KERNEL.finditer(text)]


def _renamed(text: str) -> str:
    """Macros that give functions and structs names that no version of Metal's library has.

    MLX makes all of the library's names known, and newer languages add some (MSL 4.1: macOS 27).
    """
    names = sorted({_GAME, *("".join(groups) for groups in _NAMED.findall(text))})
    return "".join(f"#define {name} puffer_{name}\n" for name in names)


def _kernel(found: re.Match[str], before: str, begin: str) -> Kernel:
    inputs, outputs = {}, {}
    for parameter in found["parameters"].split(","):
        match parameter.replace("*", "").split():
            case ["device", "const", type_, name]:
                inputs[name] = type_
            case ["device", type_, name]:
                outputs[name] = type_
    constants = found["template"].split(",") if found["template"] else []
    template = tuple(parameter.split()[-1] for parameter in constants)
    return Kernel(found["name"], before, begin + found["body"], template, inputs, outputs)
