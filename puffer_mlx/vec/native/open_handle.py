"""The address of environments in C for as long as they are open, waiting for them, their end."""

import ctypes
from collections.abc import Callable
from typing import Any

from puffer_mlx.errors import UserError
from puffer_mlx.vec.native.c_functions import TEXT_BYTES
from puffer_mlx.vec.native.interruptible_wait import (
    OVER,
    PATIENCE_MS,
    SLICE_MS,
    UNDER_WAY,
    abandon,
    until_done,
)


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
        """Wait as ``interruptible_wait.until_done``; an interrupt is remembered, for ``close``.

        Raises:
            UserError: an environment ended itself.
        """
        try:
            found = until_done(call, *arguments, stop=self._stop)
        except BaseException:
            self._patient = False
            raise
        if found == OVER:
            raise self.ended()
        return found

    def _stop(self) -> None:
        """End a rollout with the step under way: nobody acts any more, as the policy may go."""
        self._library.puffer_stop(self._address)

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
        close, found = self._library.puffer_close, UNDER_WAY
        self._library.puffer_stop(address)
        try:
            while self._patient and (found := close(address, SLICE_MS)) == UNDER_WAY:
                pass
        finally:
            if found == UNDER_WAY and close(address, PATIENCE_MS) == UNDER_WAY:
                self._library.puffer_abandon(address)
                abandon(self.held, self._name)
            self.held = []
