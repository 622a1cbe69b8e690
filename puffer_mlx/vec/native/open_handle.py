"""The address of environments in C for as long as they are open, waiting for them, their end.

Python runs its signal handlers between two of its own instructions, so a call that waits for C code
comes back every now and then, and is made again: Ctrl-C is heard though a step may never end.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from puffer_mlx.errors import UserError
from puffer_mlx.vec.native.c_functions import TEXT_BYTES

SLICE_MS = 100  # from one look at signals to the next
PATIENCE_MS = 500  # for a step under way when the caller does not want to wait any more
UNDER_WAY, OVER = -1, -2  # PUFFER_UNDER_WAY and PUFFER_OVER of envs/src/vec.h

ABANDONED: list[Any] = []  # what threads that don't end may still read and write


class OpenHandle:
    """What ``create`` made, until it is closed.

    Args:
        library: their functions.
        name: the environment's, for messages.
        address: the first argument of those functions.
        places: of ``held``.

    Attributes:
        held: arrays that C reads and writes while a step is under way: they stay alive.
    """

    def __init__(self, library: ctypes.CDLL, name: str, address: int, places: int) -> None:
        self._address: int | None = address
        self.held: list[Any] = [None] * places
        self._library, self._name = library, name
        self._patient = True  # with steps that don't end

    def address(self) -> int:
        """The first argument of the library's functions.

        Raises:
            RuntimeError: the environments are closed.
        """
        if not self._address:
            raise RuntimeError(f"{self._name}: the environments are closed")
        return self._address

    def until_done(self, call: Callable[..., int], *arguments: Any) -> int:
        """Call ``call(*arguments, milliseconds)`` until nothing is under way any more.

        Args:
            call: returns ``UNDER_WAY``, ``OVER``, or what this returns.
            arguments: its own.

        Raises:
            UserError: an environment ended itself.
            BaseException: what a signal handler raised. A step that ends soon is waited for first,
                so that the environments can be used again, or closed.
        """
        try:
            while (result := call(*arguments, SLICE_MS)) == UNDER_WAY:
                pass
        except BaseException:
            self._patient = False
            self._library.puffer_stop(self._address)  # nobody acts any more: the policy may go
            call(*arguments, PATIENCE_MS)
            raise
        if result == OVER:
            raise self.ended()
        return result

    def ended(self) -> UserError:
        """What to raise when no step is possible any more."""
        text = ctypes.create_string_buffer(TEXT_BYTES)
        self._library.puffer_ended(self._address, text, len(text))
        message, _, hint = text.value.decode(errors="replace").partition("\n")
        return UserError(f"{self._name}: {message}", hint)

    def close(self) -> None:
        """As ``NativeVec.close``."""
        address, self._address = self._address, None
        if not address:
            return
        close, result = self._library.puffer_close, UNDER_WAY
        self._library.puffer_stop(address)
        try:
            while self._patient and (result := close(address, SLICE_MS)) == UNDER_WAY:
                pass
        finally:
            if result == UNDER_WAY and close(address, PATIENCE_MS) == UNDER_WAY:
                self._library.puffer_abandon(address)
                abandon(self.held, self._name)
            self.held = []


def abandon(holder: Any, name: str) -> None:
    """Keep an object for as long as the process lives, its end included, and say so."""
    ABANDONED.append(holder)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))  # also when the interpreter clears modules
    print(f"puffer_mlx: {name}: a step doesn't end; it is left to itself", file=sys.stderr)
