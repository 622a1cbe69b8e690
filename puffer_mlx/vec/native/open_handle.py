"""Handle of open environments in C: wait for them, and close them.

Python runs signal handlers only between two bytecode instructions. So a call that waits for C code
returns regularly and is repeated, and Ctrl-C works even if a step never ends.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from puffer_mlx.errors import UserError
from puffer_mlx.vec.native.c_functions import TEXT_BYTES

SLICE_MS = 100  # milliseconds between two checks for signals
INTERRUPT_TIMEOUT_MS = 500  # timeout of a step in progress after an interrupt
UNDER_WAY, OVER = -1, -2  # PUFFER_UNDER_WAY and PUFFER_OVER of envs/src/vec.h

ABANDONED: list[Any] = []  # objects that threads which never end may still access


class OpenHandle:
    """Address of environments that ``create`` made, until they are closed.

    Args:
        library: Library of the environments.
        name: Name of the environment, for messages.
        address: First argument of the library's functions.
        places: Number of entries in ``held``.

    Attributes:
        held: Arrays that C accesses while a step is in progress; keeps them alive.
    """

    def __init__(self, library: ctypes.CDLL, name: str, address: int, places: int) -> None:
        self._address: int | None = address
        self.held: list[Any] = [None] * places
        self._library = library
        self._name = name
        self._interrupted = False  # True after a signal during a step

    def address(self) -> int:
        """First argument of the library's functions.

        Raises:
            RuntimeError: The environments are closed.
        """
        if not self._address:
            raise RuntimeError(f"{self._name}: the environments are closed")
        return self._address

    def until_done(self, call: Callable[..., int], *arguments: Any) -> int:
        """Call ``call(*arguments, milliseconds)`` until no step is in progress. Return its result.

        Args:
            call: Returns ``UNDER_WAY``, ``OVER``, or the result.
            arguments: Arguments before the timeout.

        Raises:
            UserError: An environment ended the process (exit, abort).
            BaseException: A signal handler raised it. A step that ends soon is waited for first, so
                that the environments can be used again or closed.
        """
        try:
            while (result := call(*arguments, SLICE_MS)) == UNDER_WAY:
                pass
        except BaseException:
            self._interrupted = True
            self._library.puffer_stop(self._address)  # then the policy may be freed
            call(*arguments, INTERRUPT_TIMEOUT_MS)
            raise
        if result == OVER:
            raise self.ended()
        return result

    def ended(self) -> UserError:
        """Return the exception for environments that can't step any more."""
        text = ctypes.create_string_buffer(TEXT_BYTES)
        self._library.puffer_ended(self._address, text, len(text))
        message, _, hint = text.value.decode(errors="replace").partition("\n")
        return UserError(f"{self._name}: {message}", hint)

    def close(self) -> None:
        """Close the environments, as ``NativeVec.close`` does."""
        address, self._address = self._address, None
        if not address:
            return
        close = self._library.puffer_close
        result = UNDER_WAY
        self._library.puffer_stop(address)
        try:
            while not self._interrupted and (result := close(address, SLICE_MS)) == UNDER_WAY:
                pass
        finally:
            if result == UNDER_WAY and close(address, INTERRUPT_TIMEOUT_MS) == UNDER_WAY:
                self._library.puffer_abandon(address)
                abandon(self.held, self._name)
            self.held = []


def abandon(holder: Any, name: str) -> None:
    """Keep an object alive until the process exits, and print a warning."""
    ABANDONED.append(holder)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))  # even when the interpreter clears modules
    print(f"puffer_mlx: {name}: a step doesn't end; it is left to itself", file=sys.stderr)
