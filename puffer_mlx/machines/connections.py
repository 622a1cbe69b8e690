"""Connections between ranks over TCP, beside MLX's collectives: the first rank lets the others in.

It listens on a port that it picks itself, and says to nobody but the other ranks, by MLX, which one
and with which word (the token) they are let in.
"""

import contextlib
import json
import secrets
import socket
from typing import Any, NamedTuple

import psutil

PATIENCE = 5.0  # seconds for each address, and to say a token
LONGEST = 4000  # characters of a line
LOCAL = "127.0.0.1"
WELCOME = b"welcome\n"


class Visitor(NamedTuple):
    """Who has come."""

    rank: int
    use: str  # what the connection is for


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

    def accept(self) -> socket.socket:
        """The next one that comes, whoever it is; an OSError once it is closed."""
        return self._server.accept()[0]

    def asked(self, peer: socket.socket) -> Visitor | None:
        """Who it is; None, and nobody is there any more, of anybody but a rank."""
        peer.settimeout(PATIENCE)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads(_line(peer))
            if secrets.compare_digest(str(said["token"]), self._token):
                peer.settimeout(None)
                return Visitor(int(said["rank"]), str(said["use"]))
        peer.close()
        return None

    def close(self) -> None:
        """Nobody comes any more; from any thread."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # or ``accept`` would go on waiting
        self._server.close()


def knock(where: dict[str, Any], rank: int, use: str) -> socket.socket | None:
    """Connect to the first rank; None if none of its addresses can be reached.

    Args:
        where: a ``Door``'s.
        rank: who comes.
        use: what the connection is for.
    """
    said = json.dumps({"token": where["token"], "rank": rank, "use": use}).encode() + b"\n"
    for address in where["addresses"]:
        with contextlib.suppress(OSError):
            peer = socket.create_connection((address, where["port"]), PATIENCE)
            with contextlib.suppress(OSError):
                peer.sendall(said)
                if _line(peer) == WELCOME:
                    peer.settimeout(None)
                    return peer
            peer.close()
    return None


def welcome(peer: socket.socket) -> bool:
    """Let one in; whether it is still there."""
    with contextlib.suppress(OSError):
        peer.sendall(WELCOME)
        return True
    return False


def own_addresses() -> list[str]:
    """This machine's addresses of IPv4, by which other machines may reach it, and its own."""
    found = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    ]
    return sorted(found, key=lambda address: address.startswith("127."))


def _line(peer: socket.socket) -> bytes:
    """A connection's first line, byte by byte: what follows it is left."""
    found = b""
    while len(found) < LONGEST and not found.endswith(b"\n"):
        if not (byte := peer.recv(1)):
            break
        found += byte
    return found
