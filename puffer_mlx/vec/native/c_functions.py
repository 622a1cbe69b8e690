"""The C functions of an environment's library: their declarations, and arguments as they take them.

The C side is ``envs/src/vec.h``, which lists the functions, and ``envs/include/vecenv.h``, the
contract of environments (of PufferLib 5.0: ``release_5/pufferenv.h`` beside it).
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from puffer_mlx.errors import UserError

ABI = 10  # PUFFER_ABI in envs/src/vec.h
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


class Keywords(ctypes.Structure):
    """PufferKeywords of envs/src/vec.h."""

    _fields_ = (
        ("count", ctypes.c_int),
        ("keys", ctypes.POINTER(ctypes.c_char_p)),
        ("values", ctypes.POINTER(ctypes.c_double)),
        ("texts", ctypes.POINTER(ctypes.c_char_p)),
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
    keywords = ctypes.POINTER(Keywords)
    text = [pointer, ctypes.c_size_t]
    for name, result, arguments in (
        (
            "create",
            pointer,
            [number] * 3 + [ctypes.c_uint] + [keywords] * 2 + [pointer, number] + text,
        ),
        ("environments", number, [pointer]),
        ("seats", number, [pointer] * 3),
        ("set_tags", number, [pointer] * 2),
        ("threads", number, [pointer]),
        ("reset", number, [pointer, *rows]),
        ("send", number, [pointer, number, number, pointer, *rows]),
        ("wait", number, [pointer, number, number, number]),
        ("collect", number, [pointer, number, *[pointer] * 3, *rows, pointer, number]),
        ("collected", number, [pointer, pointer, number]),
        ("stop", None, [pointer]),
        ("ended", number, [pointer, *text]),
        ("abandon", None, [pointer]),
        ("log", number, [pointer, strings, doubles, number]),
        ("next_log", number, [pointer, ctypes.POINTER(number), strings, doubles, number]),
        ("save", long, [pointer, pointer, long]),
        ("load", number, [pointer, pointer, long, *text]),
        ("gpu_rules", ctypes.c_char_p, [pointer]),
        ("take_structs", number, [pointer, pointer]),
        ("give_structs", None, [pointer] * 7),
        ("add_log", None, [pointer, pointer]),
        ("can_render", number, []),
        ("render", number, [pointer, number]),
        ("set_bot_policy", number, [pointer, number]),
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


def keywords(given: Mapping[str, Any], texts: bool = False) -> Keywords:
    """Parameters as the C side takes them.

    Args:
        given: names and values.
        texts: of PufferLib 5.0: what is no number is passed on, too, as its text and the number 0.
            Without, it is left out, as 4.0 does.
    """
    found = numbers(given)
    names = list(given) if texts else list(found)
    count = len(names)
    return Keywords(
        count,
        (ctypes.c_char_p * count)(*(name.encode() for name in names)),
        (ctypes.c_double * count)(*(found.get(name, 0.0) for name in names)),
        (ctypes.c_char_p * count)(*(as_text(given[name]).encode() for name in names))
        if texts
        else None,
    )


def as_text(value: Any) -> str:
    """A parameter's value as a file of PufferLib 5.0 would have it."""
    if isinstance(value, bool | int | float):
        return f"{float(value):.17g}"
    if isinstance(value, list | tuple):
        return ",".join(map(as_text, value))
    return str(value)


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
