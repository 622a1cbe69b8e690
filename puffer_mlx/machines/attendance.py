"""Who of the ranks is still there, told beside MLX's collectives, which may wait without end.

The first rank listens on a port of its own, to which the others say every half second that they are
there and how far they have come. Threads of their own do that, so it goes on while a rank computes.

| what happens to a rank | how it is noticed |
| --- | --- |
| it fails | it says why before it ends |
| it is killed | its connection is closed |
| its machine, or its network, is gone | nothing has come for ``SILENT`` seconds |
| it hangs | it has come less far than others, and nobody goes on for a while |

Whoever hears of one raises it where ranks exchange something next. A thread that doesn't get there,
since a collective never returns, is left behind: what can be saved is saved, and the process ends.
"""

import atexit
import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil

BEAT = 0.5  # seconds from one sign of life to the next
SILENT = 10.0  # seconds without one, if its patience isn't shorter
FIRST = 300.0  # seconds that a rank may take longer than others in its first epoch: it compiles
GRACE = 4.0  # seconds that the main thread has to end by itself
RESCUE = 15.0  # seconds that saving may take without it
SAVING = 20.0  # seconds more, if it is about to
CONNECTING = 5.0  # seconds for each address
LONGEST = 4000  # characters of a line
LOCAL = "127.0.0.1"


@dataclass
class Place:
    """How far a rank has come, by its own words."""

    count: int = 0
    busy: bool = False  # it does something alone: saves, evaluates
    begun: bool = False  # it has come through an epoch
    heard: float = field(default_factory=time.monotonic)


class Attendance:
    """A rank's view of the others; threads of its own fill it.

    Args:
        rank: this one's number.
        patience: seconds that others wait for a rank that hangs.

    Attributes:
        place: how far this one has come.
        lost: what has happened to another one; None if nothing has.
        gone: the number of that one.
        rescue: saves what can be saved, and returns a line; called in another thread.
    """

    def __init__(self, rank: int, patience: float) -> None:
        self.rank, self._patience = rank, patience
        self._silent = min(SILENT, max(patience, 4 * BEAT))
        self.place = Place()
        self.lost: str | None = None
        self.gone: int | None = None
        self.rescue: Callable[[], str] = str
        self.raising = False  # the main thread knows
        self._lost, self._closed = threading.Event(), threading.Event()
        self._peers: dict[int, socket.socket] = {}
        self._places: dict[int, Place] = {}
        self._lock = threading.Lock()

    # ---- beginning and end -----------------------------------------------------------------------

    def listen(self, count: int, local: bool) -> dict[str, Any]:
        """The first rank: wait for ``count`` others; what they need to connect.

        Args:
            count: of the others.
            local: all of them are on this machine.
        """
        server = socket.create_server((LOCAL if local else "", 0))
        token = secrets.token_hex(16)
        self._start(self._accept, server, token, count)
        self._start(self._judge)
        addresses = [LOCAL] if local else own_addresses()
        return {"addresses": addresses, "port": server.getsockname()[1], "token": token}

    def connect(self, where: dict[str, Any]) -> bool:
        """Another rank: say to the first one that this is there; whether that could be done."""
        for address in where["addresses"]:
            with contextlib.suppress(OSError):
                peer = socket.create_connection((address, where["port"]), CONNECTING)
                peer.settimeout(None)
                self._peers[0], self._places[0] = peer, Place()
                self._send(0, token=where["token"], rank=self.rank)
                self._start(self._listen_to, 0, peer)
                self._start(self._judge)
                return True
        return False

    def close(self, error: str = "") -> None:
        """Say that this rank ends, and why if it failed."""
        for rank in [*self._peers]:
            self._send(rank, left=error)
        self._closed.set()
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_WR)

    # ---- what the main thread asks ---------------------------------------------------------------

    def wait_lost(self, seconds: float) -> str | None:
        """What has happened to another rank, if that is heard within so many seconds."""
        self._lost.wait(seconds)
        self.raising = self.lost is not None
        return self.lost

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A block in which this rank does something without the others, who wait."""
        self.place.busy = True
        try:
            yield
        finally:
            self.place.busy = False

    # ---- threads ---------------------------------------------------------------------------------

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, name="attendance", daemon=True).start()

    def _send(self, to: int, **what: Any) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._peers[to].sendall(json.dumps(what).encode() + b"\n")

    def _accept(self, server: socket.socket, token: str, count: int) -> None:
        with server:
            while len(self._peers) < count and not self._closed.is_set():
                peer, _ = server.accept()
                self._start(self._welcome, peer, token, count)

    def _welcome(self, peer: socket.socket, token: str, count: int) -> None:
        """Listen to a rank; hang up on anybody else."""
        peer.settimeout(CONNECTING)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            first = json.loads(_line(peer))
            if secrets.compare_digest(str(first["token"]), token) and 0 < first["rank"] <= count:
                peer.settimeout(None)
                self._peers[first["rank"]], self._places[first["rank"]] = peer, Place()
                self._listen_to(first["rank"], peer)
                return
        peer.close()

    def _listen_to(self, rank: int, peer: socket.socket) -> None:
        """Take what a rank says until it leaves."""
        place = self._places[rank]
        try:
            with peer.makefile("r") as lines:
                while line := lines.readline(LONGEST):
                    said = json.loads(line)
                    place.heard = time.monotonic()
                    if "lost" in said:
                        self._lose(said["gone"], said["lost"])
                    if "left" in said:
                        self._places.pop(rank, None)
                        if said["left"]:
                            self._lose(rank, f"rank {rank} has ended: {said['left']}")
                        return
                    place.count, place.busy = said.get("count", 0), said.get("busy", False)
                    place.begun = said.get("begun", False)
        except (OSError, ValueError):
            pass
        if self._places.pop(rank, None):
            self._lose(rank, f"rank {rank} has died")

    def _judge(self) -> None:
        """Say how far this rank has come, and look at the others, twice a second."""
        far, since = [], time.monotonic()
        while not self._closed.wait(BEAT):
            place, now = self.place, time.monotonic()
            for rank in [*self._places]:
                self._send(rank, count=place.count, busy=place.busy, begun=place.begun)
            for rank, other in [*self._places.items()]:
                if now - other.heard > self._silent:
                    self._lose(rank, f"rank {rank} hasn't answered for {self._silent:.0f} s")
            if self.rank:  # the first one judges who hangs
                continue
            places = {0: place, **self._places}
            counts = [other.count for other in places.values()]
            if counts != far or any(other.busy for other in places.values()):
                far, since = counts, now
            begun = all(other.begun for other in places.values())
            patience = self._patience if begun else max(FIRST, self._patience)
            if now - since > patience and min(counts) < max(counts):
                rank = min(places, key=lambda number: places[number].count)
                self._lose(rank, f"rank {rank} hangs: the others have waited {patience:.0f} s")

    def _lose(self, rank: int, why: str) -> None:
        """Take note that a rank is lost, and have all others know."""
        with self._lock:
            if self.lost is not None or self._closed.is_set():
                return
            self.lost, self.gone = why, rank
        for other in [*self._places] if not self.rank else []:
            self._send(other, lost=why, gone=rank)
        self._lost.set()
        self._start(self._end)

    def _end(self) -> None:
        """End the process, unless the main thread does.

        Which may still wait without end when all is saved, for threads that MLX's messages hold.
        """
        if self._closed.wait(GRACE) or (self.raising and self._closed.wait(SAVING)):
            atexit.register(_leave)
            time.sleep(GRACE)
            _leave()
        write(f"error: {self.lost}")
        helper = threading.Thread(target=self._rescue, daemon=True)
        helper.start()
        helper.join(RESCUE)
        os._exit(2)

    def _rescue(self) -> None:
        try:
            write(self.rescue())
        except Exception as error:
            write(f"not saved: {error}")


def _leave() -> None:
    """End the process now, with what it has said."""
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(2)


def write(line: str) -> None:
    """A line on standard error, whatever other threads hold."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


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
