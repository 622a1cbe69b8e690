"""The C functions of an environment's library: their declarations, and arguments as they take them.

The C side is ``envs/src/vec.h``, which lists the functions, and ``envs/include/vecenv.h``, the
contract of environments.
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from puffer_mlx.errors import UserError

ABI = 7  # PUFFER_ABI in envs/src/vec.h
TEXT_BYTES = 4096  # of a message
_MAX_LOG_KEYS = 256


class Span(ctypes.Structure):
    """PufferSpan of envs/src/vec.h."""

    _fields_ = (
        ("thread", ctypes.c_int),
        ("first", ctypes.c_int),
        ("begin", ctypes.c_double),
        ("end", ctypes.c_double),
    )


def load(path: Path) -> ctypes.CDLL:
    """Load a compiled environment, and declare its functions.

    Raises:
        UserError: it can't be loaded, or lacks a function.
    """
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
        ("send", number, [pointer, number, number, pointer, *rows]),
        ("wait", number, [pointer, number, number, number]),
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


def read_means(name: str, function: Any, *arguments: Any) -> dict[str, float]:
    """Call a function of the library that fills keys and values, those of a log.

    Raises:
        UserError: there are more than 256 keys; ``name`` is the environment's.
    """
    keys = (ctypes.c_char_p * _MAX_LOG_KEYS)()
    values = (ctypes.c_double * _MAX_LOG_KEYS)()
    size = function(*arguments, keys, values, _MAX_LOG_KEYS)
    if size < 0:
        raise UserError(f"{name}: my_log sets more than {_MAX_LOG_KEYS} keys")
    return {
        (key or b"").decode(): value for key, value in zip(keys[:size], values[:size], strict=True)
    }
