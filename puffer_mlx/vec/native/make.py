"""Native environments as shared libraries: find a folder, compile it, load it, ask what it is.

The C side is ``envs/include/vecenv.h`` (the contract) and ``envs/src`` (``vec.h`` lists the
functions declared here).
"""

import ctypes
import difflib
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.system.compiler import load_compiled
from puffer_mlx.vec.native.compiling import compile_environment, environment_flags
from puffer_mlx.vec.native.sources import environment_files, environments_folder, sources_digest

__all__ = [
    "Span",
    "compile_environment",
    "environment_files",
    "environment_flags",
    "environments_folder",
    "find_environment",
    "keywords",
    "load",
    "numbers",
    "open_environment",
    "read_spec",
    "sources_digest",
]

_ABI = 6  # PUFFER_ABI in envs/src/vec.h


def find_environment(name: str) -> Path:
    """The folder of a native environment that comes with puffer_mlx.

    Raises:
        UserError: there is none of this name; the message lists those there are.
    """
    root = environments_folder()
    names = sorted(path.parent.name for path in root.glob("*/binding.c"))
    if name in names:
        return root / name
    close = difflib.get_close_matches(name, names, 1, 0.5)
    raise UserError(
        f"there is no native environment {name!r}; there are: {', '.join(names) or 'none'}",
        f"did you mean {close[0]!r}?" if close else f"environments are folders in {root}",
    )


class Span(ctypes.Structure):
    """PufferSpan of envs/src/vec.h."""

    _fields_ = (
        ("thread", ctypes.c_int),
        ("first", ctypes.c_int),
        ("begin", ctypes.c_double),
        ("end", ctypes.c_double),
    )


def open_environment(folder: Path | str) -> ctypes.CDLL:
    """``load`` what ``compile_environment`` returns; again, if what the cache has can't be loaded.

    Raises:
        UserError: it can't be compiled, or loaded.
    """
    return load_compiled(functools.partial(compile_environment, folder), load)


def load(path: Path) -> ctypes.CDLL:
    """Load a compiled environment and declare the functions of ``envs/src/vec.h``."""
    try:
        library = ctypes.CDLL(os.fspath(path))
        library.puffer_spec.argtypes = [ctypes.POINTER(ctypes.c_int), ctypes.c_int]
    except (OSError, AttributeError) as error:
        raise UserError(
            f"the compiled environment can't be loaded: {error}",
            f"define every function that vecenv.h asks for; if they are all there, delete {path}",
        ) from None
    pointer, number, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    strings, doubles = ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_double)
    rows = [pointer] * 4
    keywords = [number, strings, doubles]
    text = [pointer, ctypes.c_size_t]
    for name, result, arguments in (
        (
            "create",
            pointer,
            [number] * 3 + [ctypes.c_uint] + keywords * 2 + [pointer, number] + text,
        ),
        ("environments", number, [pointer]),
        ("threads", number, [pointer]),
        ("reset", number, [pointer, *rows]),
        ("send", number, [pointer, number, pointer, *rows]),
        ("wait", number, [pointer, number, number]),
        ("collect", number, [pointer, number, *[pointer] * 3, *rows, pointer, number]),
        ("collected", number, [pointer, pointer, number]),
        ("ended", number, [pointer, *text]),
        ("abandon", None, [pointer]),
        ("log", number, [pointer, strings, doubles, number]),
        ("next_log", number, [pointer, ctypes.POINTER(number), strings, doubles, number]),
        ("save", long, [pointer, pointer, long]),
        ("load", number, [pointer, pointer, long, *text]),
        ("can_render", number, []),
        ("render", number, [pointer, number]),
        ("busy_seconds", ctypes.c_double, [pointer]),
        ("close", number, [pointer, number]),
        ("rand_r", number, [ctypes.POINTER(ctypes.c_uint)]),
    ):
        function = getattr(library, f"puffer_{name}")
        function.restype = result
        function.argtypes = arguments
    return library


def read_spec(name: str, library: ctypes.CDLL) -> EnvSpec:
    """What one agent sees and does, according to the library."""
    count = library.puffer_spec(None, 0)
    out = (ctypes.c_int * count)()
    library.puffer_spec(out, count)
    abi, size, is_float, heads, mask_size, *rest = out
    shape, sizes = tuple(rest[:3]), rest[3:]
    assert abi == _ABI and len(sizes) == heads, (abi, heads, sizes)
    try:
        action = ActionSpec(tuple(sizes))
    except ValueError as error:
        raise UserError(
            f"{name}: ACT_SIZES in binding.c: {error}",
            "all sizes 1 is a continuous space; a discrete one has no head of size 1",
        ) from None
    if mask_size not in (0, action.logits):
        raise UserError(
            f"{name}: MY_ACTION_MASK in binding.c is {mask_size}, expected {action.logits}",
            "a mask has one byte for every choice of every head: the sum of ACT_SIZES",
        )
    dtype = np.dtype(np.float32 if is_float else np.uint8)
    try:
        return EnvSpec(name, size, dtype, action, mask_size, shape if any(shape) else ())
    except ValueError as error:
        raise UserError(
            f"{name}: MY_OBS_SHAPE in binding.c: {error}",
            "it is {height, width, channels} of the observation, whose product is OBS_SIZE",
        ) from None


def numbers(given: Mapping[str, Any]) -> dict[str, float]:
    """The entries that can be converted to a float."""
    found = {}
    for key, value in given.items():
        try:
            found[key] = float(value)
        except (TypeError, ValueError):
            continue
    return found


def keywords(given: Mapping[str, Any]) -> tuple[int, Any, Any]:
    """Count, keys and values as C arrays."""
    pairs = numbers(given)
    keys = (ctypes.c_char_p * len(pairs))(*(key.encode() for key in pairs))
    return len(pairs), keys, (ctypes.c_double * len(pairs))(*pairs.values())
