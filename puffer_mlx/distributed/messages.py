"""TCP connections between ranks for small messages, beside MLX's collectives.

The first rank listens on a free port. It sends the port and a secret token to the other ranks
through MLX; connections without the token are closed.

With NCCL, MLX's collectives run on the GPU. Sending a few bytes of the host through it takes a
millisecond, in which the GPU computes nothing. Through these connections it takes 0.1 ms. Each rank
sends to the first one, which sends everything to all.
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

TIMEOUT = 5.0  # seconds to connect to an address, and to receive a greeting
POLL = 0.2  # seconds between two checks for a lost rank
LOCAL = "127.0.0.1"
GREETING = struct.Struct("<16sIB")  # the token, the rank, the purpose of the connection
WELCOME = b"welcome"


class LostRank(RuntimeError):
    """A rank no longer answers."""


class RendezvousServer:
    """Accepts the other ranks' connections, on the first rank.

    Args:
        local: True if all ranks are on this machine.

    Attributes:
        address: argument of ``connect`` on other ranks, can be sent as JSON.
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
        """Wait for the next connection, of a rank or of another program, and return it.

        Raises:
            OSError: the server was closed.
        """
        return self._server.accept()[0]

    def greeted(self, peer: socket.socket) -> tuple[int, int] | None:
        """Return the rank and the purpose of a connection.

        A connection without the token is closed, and the result is None.
        """
        with contextlib.suppress(OSError):
            token, rank, use = GREETING.unpack(_received(peer, GREETING.size))
            if secrets.compare_digest(token, self._token):
                return rank, use
        peer.close()
        return None

    def close(self) -> None:
        """Accept no further connections. Any thread may call this."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # without it ``accept`` would keep waiting
        self._server.close()


def connect(address: dict[str, Any], rank: int, use: int) -> Connection | None:
    """Connect to the first rank. Returns the connection, or None if no host accepts it.

    Args:
        address: ``RendezvousServer.address``.
        rank: number of this rank.
        use: purpose of the connection: ``heartbeat.BEATS`` or ``heartbeat.MESSAGES``.
    """
    greeting = GREETING.pack(bytes.fromhex(address["token"]), rank, use)
    for host in address["hosts"]:
        with contextlib.suppress(OSError):
            peer = socket.create_connection((host, address["port"]), TIMEOUT)
            with contextlib.suppress(OSError):
                peer.sendall(greeting)
                if _received(peer, len(WELCOME)) == WELCOME:
                    return connection(peer)
            peer.close()
    return None


def _received(peer: socket.socket, size: int) -> bytes:
    """Receive ``size`` bytes, perhaps in several parts.

    Raises:
        OSError: they didn't arrive within ``TIMEOUT``, or the peer closed the connection.
    """
    until = time.monotonic() + TIMEOUT
    data = b""
    while len(data) < size:
        peer.settimeout(max(until - time.monotonic(), 1e-3))
        more = peer.recv(size - len(data))
        if not more or time.monotonic() > until:
            raise ConnectionError("no whole greeting")
        data += more
    return data


def connection(peer: socket.socket) -> Connection:
    """Return a connection for messages, without a timeout."""
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(peer.detach())


def own_addresses() -> list[str]:
    """Return this machine's IPv4 addresses, local ones last."""
    listed = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    ]
    return sorted(listed, key=lambda address: address.startswith("127."))


class HostAllGather:
    """Exchanges small messages between all ranks, through the first one.

    Args:
        peers: connections by rank: to all others on the first rank, to the first one elsewhere.
        size: number of ranks.
        lost: returns how a rank was lost, or None.
    """

    def __init__(
        self, peers: Mapping[int, Connection], size: int, lost: Callable[[], str | None]
    ) -> None:
        self._peers = [peers[rank] for rank in sorted(peers)]
        self._first = 0 not in peers
        self._size = size
        self._lost = lost

    def all_bytes(self, data: bytes) -> list[bytes]:
        """Return each rank's bytes, in the order of the ranks. All ranks must call this.

        Raises:
            LostRank: a rank no longer answers.
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
        while not peer.poll(POLL):
            if reason := self._lost():
                raise LostRank(reason)
        return peer.recv_bytes()
