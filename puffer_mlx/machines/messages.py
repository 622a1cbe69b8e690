"""Connections between ranks over TCP, beside MLX's collectives, and small messages through them.

The first rank lets the others in: it listens on a port that it picks itself, and says to nobody but
the other ranks, by MLX, which one and with which word (the token) they are let in.

MLX's collectives are on a GPU with NCCL. A few bytes of the host's take a millisecond through it
(to the GPU, through the collective, back), while it computes nothing; through these connections
they take 0.1 ms, and the GPU hears nothing of it. All go to the first rank, which sends all to all.
"""

import contextlib
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import psutil

PATIENCE = 5.0  # seconds to connect to an address, and for a whole greeting
LOOKS = 0.2  # seconds between two looks at whether a rank is lost
LOCAL = "127.0.0.1"
GREETING = struct.Struct("<16sIB")  # the token, the rank, what the connection is for
WELCOME = b"welcome"


class LostRank(RuntimeError):
    """A rank doesn't answer any more."""


class RendezvousServer:
    """Where the first rank lets others in.

    Args:
        local: all of them are on this machine.

    Attributes:
        address: what they need to ``connect``: JSON.
    """

    def __init__(self, local: bool) -> None:
        self._server = socket.create_server((LOCAL if local else "", 0))
        self._token = secrets.token_bytes(16)
        self.address: dict[str, Any] = {
            "hosts": [LOCAL] if local else own_addresses(),
            "port": self._server.getsockname()[1],
            "token": self._token.hex(),
        }

    def accept(self) -> socket.socket:
        """The next one that connects, a rank or a stranger; an OSError once this is closed."""
        return self._server.accept()[0]

    def greeted(self, peer: socket.socket) -> tuple[int, int] | None:
        """The rank that connected and what for; None if a stranger did, who is hung up on."""
        with contextlib.suppress(OSError):
            token, rank, use = GREETING.unpack(_received(peer, GREETING.size))
            if secrets.compare_digest(token, self._token):
                return rank, use
        peer.close()
        return None

    def close(self) -> None:
        """Let nobody in any more; from any thread."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # or ``accept`` would go on waiting
        self._server.close()


def connect(address: dict[str, Any], rank: int, use: int) -> Connection | None:
    """Connect to the first rank; None if none of its hosts can be reached, or lets this one in.

    Args:
        address: a ``RendezvousServer``'s.
        rank: this one's.
        use: what the connection is for.
    """
    greeting = GREETING.pack(bytes.fromhex(address["token"]), rank, use)
    for host in address["hosts"]:
        with contextlib.suppress(OSError):
            peer = socket.create_connection((host, address["port"]), PATIENCE)
            with contextlib.suppress(OSError):
                peer.sendall(greeting)
                if _received(peer, len(WELCOME)) == WELCOME:
                    return connection(peer)
            peer.close()
    return None


def _received(peer: socket.socket, size: int) -> bytes:
    """So many bytes of a stranger's, who may send a part of them and wait.

    Raises:
        OSError: they haven't come within ``PATIENCE``, or the other side has hung up.
    """
    until, data = time.monotonic() + PATIENCE, b""
    while len(data) < size:
        peer.settimeout(max(until - time.monotonic(), 1e-3))
        more = peer.recv(size - len(data))
        if not more or time.monotonic() > until:
            raise ConnectionError("no whole greeting")
        data += more
    return data


def connection(peer: socket.socket) -> Connection:
    """A socket as a connection of messages, which waits without end."""
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(peer.detach())


def own_addresses() -> list[str]:
    """This machine's addresses of IPv4, by which other machines may reach it, and its own."""
    listed = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    ]
    return sorted(listed, key=lambda address: address.startswith("127."))


class Post:
    """A rank's connections, through which bytes of all ranks go to all.

    Args:
        peers: by their ranks: of the first rank all others, of another one the first.
        size: how many ranks there are.
        lost: says what has happened to a rank, if something has.
    """

    def __init__(
        self, peers: Mapping[int, Connection], size: int, lost: Callable[[], str | None]
    ) -> None:
        self._peers = [peers[rank] for rank in sorted(peers)]
        self._first, self._size, self._lost = 0 not in peers, size, lost

    def all_bytes(self, data: bytes) -> list[bytes]:
        """Each rank's bytes, in the order of the ranks, which all call this.

        Raises:
            LostRank: one of them is.
        """
        try:
            if not self._first:
                (first,) = self._peers
                first.send_bytes(data)
                return [self._message(first) for _ in range(self._size)]
            parts = [data, *map(self._message, self._peers)]
            for peer in self._peers:
                for part in parts:
                    peer.send_bytes(part)
            return parts
        except (OSError, EOFError) as error:
            raise LostRank(str(error) or "a connection was closed") from None

    def _message(self, peer: Connection) -> bytes:
        while not peer.poll(LOOKS):
            if reason := self._lost():
                raise LostRank(reason)
        return peer.recv_bytes()
