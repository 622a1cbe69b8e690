"""Which ranks are still there, told beside MLX's collectives, which may wait without end.

The others say to the first rank every half second that they are there and how far they have come
(``messages.py``). Threads of their own do that, so it goes on while a rank computes.

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
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from puffer_mlx.machines.messages import WELCOME, RendezvousServer, connect, connection

BEAT = 0.5  # seconds from one sign of life to the next
SILENT = 10.0  # seconds without one, if its patience isn't shorter
FIRST = 300.0  # seconds that a rank may take longer than others in its first epochs: it compiles
GRACE = 4.0  # seconds that the main thread has to end by itself
RESCUE = 15.0  # seconds that saving may take without it
SAVING = 20.0  # seconds more, if it is about to
BEATS, MESSAGES = range(2)  # what a rank's two connections are for


@dataclass
class Progress:
    """How far a rank has come, by its own words."""

    count: int = 0
    busy: bool = False  # it does something alone: saves, evaluates
    begun: bool = False  # it has come through the epochs in which it compiles
    heard: float = field(default_factory=time.monotonic)


class Attendance:
    """A rank's view of the others; threads of its own fill it.

    Args:
        rank: this one's number.
        patience: seconds that others wait for a rank that hangs.

    Attributes:
        progress: how far this one has come.
        lost: what has happened to another one; None if nothing has.
        rescue: saves what can be saved, and returns a line; called in another thread.
        messages: connections for them, by ranks (``Post``); closed with this.
    """

    def __init__(self, rank: int, patience: float) -> None:
        self.rank, self._patience = rank, patience
        self._silent = min(SILENT, max(patience, 4 * BEAT))
        self.progress = Progress()
        self.lost: str | None = None
        self.rescue: Callable[[], str] = str
        self.raising = False  # the main thread knows
        self._lost, self._closed = threading.Event(), threading.Event()
        self.messages: dict[int, Connection] = {}
        self._peers: dict[int, Connection] = {}
        self._progress: dict[int, Progress] = {}
        self._server: RendezvousServer | None = None
        self._lock = threading.Lock()

    # ---- beginning and end -----------------------------------------------------------------------

    def listen(self, count: int, local: bool) -> dict[str, Any]:
        """The first rank: wait for ``count`` others; what they need to connect.

        Args:
            count: of the others.
            local: all of them are on this machine.
        """
        server = self._server = RendezvousServer(local)
        self._start(self._accept, count)
        self._start(self._judge)
        return server.address

    def connect(self, address: dict[str, Any]) -> bool:
        """Another rank: say to the first one that this is there; whether that could be done."""
        messages = connect(address, self.rank, MESSAGES)
        peer = messages and connect(address, self.rank, BEATS)
        if messages is None or peer is None:
            return False
        self.messages[0], self._peers[0], self._progress[0] = messages, peer, Progress()
        self._start(self._listen_to, 0, peer)
        self._start(self._judge)
        return True

    def close(self, error: str = "") -> None:
        """Say that this rank ends, and why if it failed."""
        for rank in [*self._peers]:
            self._send(rank, left=error)
        self._closed.set()
        if self._server:
            self._server.close()
        for peer in self.messages.values():
            peer.close()

    # ---- what the main thread asks ---------------------------------------------------------------

    def wait_lost(self, seconds: float) -> str | None:
        """What has happened to another rank, if that is heard within so many seconds."""
        self._lost.wait(seconds)
        self.raising = self.lost is not None
        return self.lost

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A block in which this rank does something without the others, who wait."""
        self.progress.busy = True
        try:
            yield
        finally:
            self.progress.busy = False

    # ---- threads ---------------------------------------------------------------------------------

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, name="attendance", daemon=True).start()

    def _send(self, to: int, **what: Any) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._peers[to].send_bytes(json.dumps(what).encode())

    def _accept(self, count: int) -> None:
        """Let ranks in until all are there, each in a thread: a stranger may say nothing."""
        assert self._server
        with contextlib.suppress(OSError):  # it was closed
            while True:
                self._start(self._welcome, self._server.accept(), count)

    def _welcome(self, stranger: socket.socket, count: int) -> None:
        """Listen to a rank; hang up on anybody else."""
        assert self._server
        rank, use = self._server.greeted(stranger) or (0, BEATS)
        if not 0 < rank <= count or use not in (BEATS, MESSAGES):
            stranger.close()
            return
        peer = connection(stranger)
        if use == MESSAGES:
            self.messages[rank] = peer
        try:
            os.write(peer.fileno(), WELCOME)
        except OSError:  # it tries again
            return
        if use == BEATS:  # from now on it is told of progress
            self._peers[rank], self._progress[rank] = peer, Progress()
        if len(self._peers) == len(self.messages) == count:
            self._server.close()
        if use == BEATS:
            self._listen_to(rank, peer)

    def _listen_to(self, rank: int, peer: Connection) -> None:
        """Take what a rank says until it leaves."""
        progress = self._progress[rank]
        with contextlib.suppress(OSError, EOFError), peer:
            while True:
                message = json.loads(peer.recv_bytes())
                progress.heard = time.monotonic()
                if "lost" in message:
                    self._lose(message["lost"])
                elif "left" in message:
                    self._progress.pop(rank, None)
                    if message["left"]:
                        self._lose(f"rank {rank} has ended: {message['left']}")
                    return
                else:
                    progress.count, progress.busy, progress.begun = message["progress"]
        if self._progress.pop(rank, None):
            self._lose(f"rank {rank} has died")

    def _judge(self) -> None:
        """Say how far this rank has come, and look at the others, twice a second."""
        far, since = [], time.monotonic()
        while not self._closed.wait(BEAT):
            mine, now = self.progress, time.monotonic()
            for rank in [*self._progress]:
                self._send(rank, progress=[mine.count, mine.busy, mine.begun])
            for rank, other in [*self._progress.items()]:
                if now - other.heard > self._silent:
                    self._lose(f"rank {rank} hasn't answered for {self._silent:.0f} s")
            if self.rank:  # the first one judges who hangs
                continue
            ranks = {0: mine, **self._progress}
            counts = [other.count for other in ranks.values()]
            if counts != far or any(other.busy for other in ranks.values()):
                far, since = counts, now
            begun = all(other.begun for other in ranks.values())
            patience = self._patience if begun else max(FIRST, self._patience)
            if now - since > patience and min(counts) < max(counts):
                rank = min(ranks, key=lambda number: ranks[number].count)
                self._lose(f"rank {rank} hangs: the others have waited {patience:.0f} s")

    def _lose(self, why: str) -> None:
        """Take note that a rank is lost, and have all others know."""
        with self._lock:
            if self.lost is not None or self._closed.is_set():
                return
            self.lost = why
        for other in [*self._progress] if not self.rank else []:
            self._send(other, lost=why)
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
            if line := self.rescue():
                write(line)
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
