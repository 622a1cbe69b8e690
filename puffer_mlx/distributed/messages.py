"""Send small messages between ranks over TCP, where MLX's collectives would be slower.

Rank 0 listens on a free port. It sends the port and a secret token to the other ranks through MLX.
Connections without the token are closed.

With NCCL, MLX's collectives run on the GPU. To send a few bytes from the host, they take a
millisecond in which the GPU does nothing else; TCP takes 0.1 ms. Each rank sends its message to
rank 0, which sends all messages to all ranks.
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

GREETING_TIMEOUT = 5.0  # seconds to connect to an address, and to receive a greeting
POLL_INTERVAL = 0.2  # seconds between two checks for a lost rank
LOCAL = "127.0.0.1"
GREETING = struct.Struct("<16sIB")  # token, rank, purpose of the connection
WELCOME = b"welcome"


class LostRank(RuntimeError):
    """Exception for an exchange that fails because another rank no longer answers."""


class RendezvousServer:
    """Server on rank 0 that accepts TCP connections from the other ranks.

    Args:
        local: True if all ranks run on this machine.

    Attributes:
        address: Hosts, port and token for ``connect`` on the other ranks. Can be sent as JSON.
    """

    def __init__(self, local: bool) -> None:
        self._server = socket.create_server((LOCAL if local else "", 0))
        self._token = secrets.token_bytes(16)
        self.address: dict[str, Any] = {
            "hosts": [LOCAL] if local else local_addresses(),
            "port": self._server.getsockname()[1],
            "token": self._token.hex(),
        }

    def accept(self) -> socket.socket:
        """Wait for the next TCP connection and return its socket. It may come from another program.

        Raises:
            OSError: The server was closed.
        """
        return self._server.accept()[0]

    def verify_greeting(self, peer: socket.socket) -> tuple[int, int] | None:
        """Receive the greeting that opens a new connection, and check the token in it.

        Returns:
            The rank of the sender and the purpose of the connection. Without the right token, the
            connection is closed and None is returned.
        """
        with contextlib.suppress(OSError):
            token, rank, purpose = GREETING.unpack(_receive(peer, GREETING.size))
            if secrets.compare_digest(token, self._token):
                return rank, purpose
        peer.close()
        return None

    def close(self) -> None:
        """Close the server, so that it accepts no more connections. Any thread may call this."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # otherwise ``accept`` would keep waiting
        self._server.close()


def connect(address: dict[str, Any], rank: int, purpose: int) -> Connection | None:
    """Connect this rank to rank 0 by TCP. Returns the connection, or None on failure.

    Args:
        address: ``RendezvousServer.address`` of rank 0.
        rank: Number of this rank.
        purpose: Purpose of the connection: ``heartbeat.BEATS`` or ``heartbeat.MESSAGES``.
    """
    greeting = GREETING.pack(bytes.fromhex(address["token"]), rank, purpose)
    for host in address["hosts"]:
        with contextlib.suppress(OSError):
            peer = socket.create_connection((host, address["port"]), GREETING_TIMEOUT)
            with contextlib.suppress(OSError):
                peer.sendall(greeting)
                if _receive(peer, len(WELCOME)) == WELCOME:
                    return to_connection(peer)
            peer.close()
    return None


def _receive(peer: socket.socket, size: int) -> bytes:
    """Receive and return exactly ``size`` bytes from a socket, in ``GREETING_TIMEOUT`` seconds.

    Raises:
        OSError: The bytes didn't arrive in time, or the peer closed the connection.
    """
    deadline = time.monotonic() + GREETING_TIMEOUT
    data = b""
    while len(data) < size:
        peer.settimeout(max(deadline - time.monotonic(), 1e-3))
        more = peer.recv(size - len(data))
        if not more or time.monotonic() > deadline:
            raise ConnectionError("incomplete greeting")
        data += more
    return data


def to_connection(peer: socket.socket) -> Connection:
    """Convert a TCP socket to a connection that sends and receives messages without a timeout."""
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(peer.detach())


def local_addresses() -> list[str]:
    """Return this machine's IPv4 addresses, with loopback addresses last."""
    addresses = [
        address.address
        for interface_addresses in psutil.net_if_addrs().values()
        for address in interface_addresses
        if address.family == socket.AF_INET
    ]
    return sorted(addresses, key=lambda address: address.startswith("127."))


class HostAllGather:
    """Exchange small messages between all ranks over TCP, through rank 0.

    Args:
        peers: Connections by rank: on rank 0 to all others, elsewhere to rank 0.
        size: Number of ranks.
        lost: Returns the reason why a rank is lost, or None.
    """

    def __init__(
        self, peers: Mapping[int, Connection], size: int, lost: Callable[[], str | None]
    ) -> None:
        self._peers = [peers[rank] for rank in sorted(peers)]
        self._is_rank_0 = 0 not in peers
        self._size = size
        self._lost = lost

    def gather(self, data: bytes) -> list[bytes]:
        """Send bytes to all ranks and return the bytes of all ranks, by rank. All must call this.

        Raises:
            LostRank: A rank no longer answers.
        """
        try:
            if not self._is_rank_0:
                (first,) = self._peers
                first.send_bytes(data)
                return [self._receive_message(first) for _ in range(self._size)]
            messages = [data, *map(self._receive_message, self._peers)]
            for peer in self._peers:
                for message in messages:
                    peer.send_bytes(message)
            return messages
        except (OSError, EOFError) as error:
            raise LostRank(str(error) or "a connection was closed") from None

    def _receive_message(self, peer: Connection) -> bytes:
        while not peer.poll(POLL_INTERVAL):
            if reason := self._lost():
                raise LostRank(reason)
        return peer.recv_bytes()
