"""Declare and call the C functions of a compiled environment library.

``envs/src/vec.h`` lists the functions. Environments of PufferLib 4.0 implement
``envs/include/vecenv.h``, those of 5.0 ``envs/include/release_5/pufferenv.h``.

Python runs signal handlers only between two bytecode instructions. So a call that waits for C code
returns regularly and is repeated, and Ctrl-C works even if a step never ends.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.base import Rows

ABI = 11  # PUFFER_ABI of envs/src/vec.h
TEXT_BYTES = 4096  # size of the buffer for a message
_MAX_LOG_KEYS = 256
FLOAT32, UINT8 = np.dtype(np.float32), np.dtype(np.uint8)
POLL_MS = 100  # milliseconds between two checks for signals
INTERRUPT_TIMEOUT_MS = 500  # timeout of a step in progress after an interrupt
# Results of C functions that wait: PUFFER_UNDER_WAY and PUFFER_OVER of envs/src/vec.h.
IN_PROGRESS = -1
ENDED = -2

# Objects that a C thread may still access, because its step doesn't end.
_abandoned_objects: list[Any] = []


class Span(ctypes.Structure):
    """Time span in which a thread worked: C struct PufferSpan of envs/src/vec.h."""

    _fields_ = (
        ("thread", ctypes.c_int),
        ("first", ctypes.c_int),
        ("begin", ctypes.c_double),
        ("end", ctypes.c_double),
    )


class Keywords(ctypes.Structure):
    """Named parameters of an environment: C struct PufferKeywords of envs/src/vec.h."""

    _fields_ = (
        ("count", ctypes.c_int),
        ("keys", ctypes.POINTER(ctypes.c_char_p)),
        ("values", ctypes.POINTER(ctypes.c_double)),
        ("texts", ctypes.POINTER(ctypes.c_char_p)),
    )


_TYPES = {
    "-": None,
    "p": ctypes.c_void_p,
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "l": ctypes.c_int64,
    "z": ctypes.c_size_t,
    "d": ctypes.c_double,
    "s": ctypes.c_char_p,
    "I": ctypes.POINTER(ctypes.c_int),
    "U": ctypes.POINTER(ctypes.c_uint),
    "D": ctypes.POINTER(ctypes.c_double),
    "S": ctypes.POINTER(ctypes.c_char_p),
    "K": ctypes.POINTER(Keywords),
}
# Name of a function without "puffer_" -> letters of ``_TYPES``: the result, then the arguments.
# "pppp" are the four arrays of ``Rows``; "pz" is a buffer for a message, and its size.
_FUNCTIONS = {
    "create": "piiiuKKpipz",
    "environments": "ip",
    "seats": "ippp",
    "set_tags": "ipp",
    "threads": "ip",
    "reset": "ippppp",
    "send": "ipiippppp",
    "wait": "ipiii",
    "collect": "ipippppppppi",
    "collected": "ippi",
    "stop": "-p",
    "ended": "ippz",
    "abandon": "-p",
    "log": "ipSDi",
    "next_log": "ipISDi",
    "save": "lppl",
    "load": "ipplpz",
    "gpu_rules": "sp",
    "take_structs": "-pp",
    "give_structs": "-ppppppp",
    "add_log": "-pp",
    "can_render": "i",
    "render": "ipi",
    "set_bot_policy": "ipi",
    "busy_seconds": "dp",
    "close": "ipi",
    "rand_r": "iU",
}


def load_library(path: Path) -> ctypes.CDLL:
    """Load a compiled environment library and declare its functions.

    Raises:
        UserError: The library can't be loaded or lacks a function.
    """
    try:
        library = ctypes.CDLL(os.fspath(path))
        library.puffer_spec.argtypes = [ctypes.POINTER(ctypes.c_int), ctypes.c_int]
    except (OSError, AttributeError) as error:
        raise UserError(
            f"the compiled environment can't be loaded: {error}",
            f"define every function that vecenv.h requires; if none is missing, delete {path}",
        ) from None
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, f"puffer_{name}")
        function.restype = _TYPES[result]
        function.argtypes = [_TYPES[letter] for letter in arguments]
    return library


def float_values(values: Mapping[str, Any]) -> dict[str, float]:
    """Convert the values of a dict to floats; leave out those that can't be converted."""
    result = {}
    for key, value in values.items():
        with suppress(TypeError, ValueError):
            result[key] = float(value)
    return result


def keywords(values: Mapping[str, Any], texts: bool = False) -> Keywords:
    """Convert an environment's parameters to the struct of keys and values that C code takes.

    Args:
        values: Parameters by name.
        texts: True to pass values that aren't numbers as text and the number 0, as PufferLib 5.0
            does; False to skip them, as 4.0 does.
    """
    floats = float_values(values)
    names = list(values if texts else floats)
    count = len(names)
    return Keywords(
        count,
        (ctypes.c_char_p * count)(*(name.encode() for name in names)),
        (ctypes.c_double * count)(*(floats.get(name, 0.0) for name in names)),
        (ctypes.c_char_p * count)(*(text_of_parameter(values[name]).encode() for name in names))
        if texts
        else None,
    )


def text_of_parameter(value: Any) -> str:
    """Convert a parameter's value to text, as in a configuration file of PufferLib 5.0."""
    if isinstance(value, bool | int | float):
        return f"{float(value):.17g}"
    if isinstance(value, list | tuple):
        return ",".join(map(text_of_parameter, value))
    return str(value)


def read_means(name: str, function: Any, *arguments: Any) -> dict[str, float]:
    """Call a C function that writes mean metrics of episodes. Returns the metrics by name.

    Args:
        name: Name of the environment, for messages.
        function: Function of the library.
        arguments: Arguments of the function before the buffers of keys and values.

    Raises:
        UserError: The log has more than 256 keys.
    """
    keys = (ctypes.c_char_p * _MAX_LOG_KEYS)()
    values = (ctypes.c_double * _MAX_LOG_KEYS)()
    size = function(*arguments, keys, values, _MAX_LOG_KEYS)
    if size < 0:
        raise UserError(f"{name}: my_log sets more than {_MAX_LOG_KEYS} keys")
    return {
        (key or b"").decode(): value for key, value in zip(keys[:size], values[:size], strict=True)
    }


def row_shapes(n: int, spec: EnvSpec) -> tuple[tuple[int, ...], ...]:
    """Return the array shapes of n agents' observations, of rewards and terminals, and of masks."""
    return (n, spec.observation_size), (n,), (n, spec.mask_size)


def row_addresses(
    out: Rows, spec: EnvSpec, expected: tuple[tuple[int, ...], ...]
) -> tuple[int | None, ...]:
    """Return the memory addresses of the arrays in ``Rows``, after checking their shapes.

    Args:
        out: The arrays.
        spec: Observations and actions of one agent.
        expected: Result of ``row_shapes``.
    """
    observations, vector, masks = expected
    return (
        address(out.observations, observations, spec.observation_dtype, "observations"),
        address(out.rewards, vector, FLOAT32, "rewards"),
        address(out.terminals, vector, FLOAT32, "terminals"),
        address(out.masks, masks, UINT8, "masks") if spec.mask_size else None,
    )


def address(
    array: Any, shape: tuple[int, ...], dtype: np.dtype, what: str, written: bool = True
) -> int:
    """Return the memory address of a C-contiguous NumPy array, after checking the array.

    This is faster than ``array.ctypes.data``.

    Args:
        array: The array; None is an error.
        shape: Expected shape.
        dtype: Expected dtype.
        what: Name of the array, for messages.
        written: True if C writes to the array. False accepts read-only arrays.

    Raises:
        ValueError: The array has another shape or dtype, isn't C-contiguous, or is read-only.
    """
    if array is not None and array.shape == shape and array.dtype == dtype:
        try:
            return ctypes.addressof(ctypes.c_char.from_buffer(array))
        except (TypeError, ValueError, BufferError):  # read-only, or not contiguous
            if array.flags.c_contiguous and not written:
                return array.ctypes.data
    kind = "None"
    if array is not None:
        kind = f"{array.dtype} {array.shape}"
        kind += "" if array.flags.c_contiguous else ", not C-contiguous"
        kind += "" if array.flags.writeable else ", read-only"
    requirement = "writable and C-contiguous" if written else "C-contiguous"
    raise ValueError(f"{what}: expected {dtype} {shape}, {requirement}; found {kind}")


class OpenHandle:
    """Handle of open C environments: their address, and the arrays that C code accesses.

    Args:
        library: Library of the environments.
        name: Name of the environment, for messages.
        address: Address of the environments, the first argument of the library's functions.
        slots: Number of entries in ``held``.

    Attributes:
        held: Arrays that C accesses while a step is in progress; the list keeps them alive.
    """

    def __init__(self, library: ctypes.CDLL, name: str, address: int, slots: int) -> None:
        self._address: int | None = address
        self.held: list[Any] = [None] * slots
        self._library = library
        self._name = name
        self._interrupted = False  # True after a signal during a step

    def address(self) -> int:
        """Return the address of the open C environments, the first argument of C functions.

        Raises:
            RuntimeError: The environments are closed.
        """
        if not self._address:
            raise RuntimeError(f"{self._name}: the environments are closed")
        return self._address

    def wait_for_step(self, call: Callable[..., int], *arguments: Any) -> int:
        """Wait for steps of C environments: repeat ``call(*arguments, milliseconds)`` until done.

        Args:
            call: C function that returns ``IN_PROGRESS``, ``ENDED``, or the result.
            arguments: Arguments before the timeout.

        Returns:
            The result of the last call.

        Raises:
            UserError: An environment called exit or abort.
            BaseException: A signal handler raised an exception. If the step in progress ends within
                half a second, the environments can be used again.
        """
        try:
            while (result := call(*arguments, POLL_MS)) == IN_PROGRESS:
                pass
        except BaseException:
            self._interrupted = True
            self._library.puffer_stop(self._address)  # from here on C doesn't call the policy
            call(*arguments, INTERRUPT_TIMEOUT_MS)
            raise
        if result == ENDED:
            raise self.ended_error()
        return result

    def ended_error(self) -> UserError:
        """Return the error for C environments that can't step any more after exit or abort."""
        text = ctypes.create_string_buffer(TEXT_BYTES)
        self._library.puffer_ended(self._address, text, len(text))
        message, _, hint = text.value.decode(errors="replace").partition("\n")
        return UserError(f"{self._name}: {message}", hint)

    def close(self) -> None:
        """Close the C environments after steps in progress, and free their memory."""
        address, self._address = self._address, None
        if not address:
            return
        close = self._library.puffer_close
        result = IN_PROGRESS  # also if a signal handler raises an exception below
        self._library.puffer_stop(address)
        try:
            while not self._interrupted and result == IN_PROGRESS:
                result = close(address, POLL_MS)
        finally:
            if result == IN_PROGRESS and close(address, INTERRUPT_TIMEOUT_MS) == IN_PROGRESS:
                self._library.puffer_abandon(address)
                abandon(self.held, self._name)
            self.held = []


def abandon(holder: Any, name: str) -> None:
    """Keep objects alive until the process exits, because a step of C code still uses them.

    Prints a warning.
    """
    _abandoned_objects.append(holder)
    # One reference more, because the interpreter clears modules when it exits.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))
    print(f"puffer_mlx: {name}: a step doesn't end; its memory isn't freed", file=sys.stderr)
