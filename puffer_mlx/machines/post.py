"""Small messages from all ranks to all, over TCP: what the host has to know at once.

MLX's collectives are on a GPU with NCCL. A few bytes of the host's take a millisecond through it
(to the GPU, through the collective, back), while it computes nothing; through these connections
they take 0.1 ms, and the GPU hears nothing of it. All go to the first rank, which sends all to all.
"""

import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
LOOKS = 0.2  # seconds between two looks at whether somebody is lost
_LENGTH = struct.Struct("<Q")


class Lost(RuntimeError):
    """A rank doesn't answer any more."""


class Post:
    """A rank's connections.

    Args:
        peers: by their ranks: of the first rank all others, of another one the first.
        lost: says what has happened to a rank, if something has.
    """

    def __init__(self, peers: Mapping[int, socket.socket], lost: Callable[[], str | None]) -> None:
        self._peers = [peers[rank] for rank in sorted(peers)]
        self._first, self._lost = 0 not in peers, lost
        for peer in self._peers:
            peer.settimeout(LOOKS)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def all_bytes(self, data: bytes) -> list[bytes]:
        """Each rank's bytes, in the order of the ranks, which all call this.

        Raises:
            Lost: one of them is.
        """
        if not self._first:
            (first,) = self._peers
            self._send(first, data)
            (count,) = _LENGTH.unpack(self._receive(first, _LENGTH.size))
            return [self._message(first) for _ in range(count)]
        found = [data, *(self._message(peer) for peer in self._peers)]
        parts = [_LENGTH.pack(len(found)), *(_LENGTH.pack(len(one)) + one for one in found)]
        for peer in self._peers:
            self._send_all(peer, b"".join(parts))
        return found

    def _send(self, peer: socket.socket, data: bytes) -> None:
        self._send_all(peer, _LENGTH.pack(len(data)) + data)

    def _message(self, peer: socket.socket) -> bytes:
        return self._receive(peer, _LENGTH.unpack(self._receive(peer, _LENGTH.size))[0])

    def _send_all(self, peer: socket.socket, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._tried(peer.send, left) or 0 :]

    def _receive(self, peer: socket.socket, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            more = self._tried(peer.recv, size - len(found))
            if more == b"":
                raise Lost("a connection was closed")
            found += more or b""
        return bytes(found)

    def _tried(self, call: Callable[[Any], T], argument: Any) -> T | None:
        """What a call returns; None if it has waited for a while, and nobody is lost."""
        try:
            return call(argument)
        except TimeoutError:
            if said := self._lost():
                raise Lost(said) from None
            return None
        except OSError as error:
            raise Lost(str(error)) from None
