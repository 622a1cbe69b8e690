"""Connections between ranks over TCP, beside MLX's collectives, and small messages through them.

The first rank lets the others in: it listens on a port that it picks itself, and says to nobody but
the other ranks, by MLX, which one and with which word (the token) they are let in.

MLX's collectives are on a GPU with NCCL. A few bytes of the host's take a millisecond through it
(to the GPU, through the collective, back), while it computes nothing; through these connections
they take 0.1 ms, and the GPU hears nothing of it. All go to the first rank, which sends all to all.
"""

import contextlib
import json
import secrets
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import psutil

PATIENCE = 5.0  # seconds for each address, and to say a token
LONGEST = 4000  # bytes of what a rank says of itself
LOOKS = 0.2  # seconds between two looks at whether somebody is lost
LOCAL = "127.0.0.1"
WELCOME = b"welcome"
FAULTS = OSError, EOFError, ValueError, KeyError, TypeError  # of whom one is connected with


class Lost(RuntimeError):
    """A rank doesn't answer any more."""


class Door:
    """Where the first rank lets others in.

    Args:
        local: all of them are on this machine.

    Attributes:
        where: what they need to ``knock``.
    """

    def __init__(self, local: bool) -> None:
        self._server = socket.create_server((LOCAL if local else "", 0))
        self._token = secrets.token_hex(16)
        addresses = [LOCAL] if local else own_addresses()
        port = self._server.getsockname()[1]
        self.where: dict[str, Any] = {"addresses": addresses, "port": port, "token": self._token}

    def accept(self) -> Connection:
        """The next one that comes, whoever it is; an OSError once it is closed."""
        return _connection(self._server.accept()[0])

    def asked(self, peer: Connection) -> tuple[int, str] | None:
        """A rank's number and what it connects for; None of a stranger, who is hung up on."""
        with contextlib.suppress(*FAULTS):
            if peer.poll(PATIENCE):
                hello = json.loads(peer.recv_bytes(LONGEST))
                if secrets.compare_digest(str(hello["token"]), self._token):
                    return int(hello["rank"]), str(hello["use"])
        peer.close()
        return None

    def close(self) -> None:
        """Nobody comes any more; from any thread."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # or ``accept`` would go on waiting
        self._server.close()


def knock(where: dict[str, Any], rank: int, use: str) -> Connection | None:
    """Connect to the first rank; None if none of its addresses can be reached.

    Args:
        where: a ``Door``'s.
        rank: who comes.
        use: what the connection is for.
    """
    hello = json.dumps({"token": where["token"], "rank": rank, "use": use}).encode()
    for address in where["addresses"]:
        with contextlib.suppress(OSError, EOFError):
            peer = _connection(socket.create_connection((address, where["port"]), PATIENCE))
            with contextlib.suppress(OSError, EOFError):
                peer.send_bytes(hello)
                if peer.poll(PATIENCE) and peer.recv_bytes(LONGEST) == WELCOME:
                    return peer
            peer.close()
    return None


def _connection(peer: socket.socket) -> Connection:
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
        lost: says what has happened to a rank, if something has.
    """

    def __init__(self, peers: Mapping[int, Connection], lost: Callable[[], str | None]) -> None:
        self._peers = [peers[rank] for rank in sorted(peers)]
        self._first, self._lost = 0 not in peers, lost

    def all_bytes(self, data: bytes) -> list[bytes]:
        """Each rank's bytes, in the order of the ranks, which all call this.

        Raises:
            Lost: one of them is.
        """
        try:
            if self._first:
                messages = [data, *map(self._message, self._peers)]
                for peer in self._peers:
                    peer.send_bytes(_packed(messages))
                return messages
            (first,) = self._peers
            first.send_bytes(data)
            return _unpacked(self._message(first))
        except (OSError, EOFError) as error:
            raise Lost(str(error) or "a connection was closed") from None

    def _message(self, peer: Connection) -> bytes:
        while not peer.poll(LOOKS):
            if reason := self._lost():
                raise Lost(reason)
        return peer.recv_bytes()


def _packed(parts: Sequence[bytes]) -> bytes:
    """Parts as one: how many, their lengths, and they."""
    head = struct.pack(f"<Q{len(parts)}Q", len(parts), *map(len, parts))
    return b"".join([head, *parts])


def _unpacked(data: bytes) -> list[bytes]:
    (count,) = struct.unpack_from("<Q", data)
    at, parts = 8 * (1 + count), []
    for length in struct.unpack_from(f"<{count}Q", data, 8):
        parts.append(data[at : at + length])
        at += length
    return parts
