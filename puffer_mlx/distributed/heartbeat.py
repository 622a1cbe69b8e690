"""Heartbeats of ranks, sent beside MLX's collectives, which may wait forever for a lost rank.

Every half second each rank reports its progress to the first rank, and the first rank reports to
all (``messages.py``). Separate threads do this while a rank computes.

| what happens to a rank | how it is noticed |
| --- | --- |
| it fails | it sends the reason before it ends |
| it is killed | its connection is closed |
| its machine or network is down | no message for ``SILENCE_TIMEOUT`` seconds |
| it hangs | it has made less progress than others, and no rank makes progress |

The first exchange after that raises the error in the main thread. If the main thread doesn't get
there, because a collective never returns, another thread saves what it can and ends the process.
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

from puffer_mlx.distributed.messages import WELCOME, RendezvousServer, connect, connection
from puffer_mlx.system.signals import write_error

BEAT = 0.5  # seconds between two heartbeats
SILENCE_TIMEOUT = 10.0  # seconds without a heartbeat until a rank is lost, at most
COMPILE_TIMEOUT = 300.0  # seconds, in the first epochs: a rank may compile longer than others
END_TIMEOUT = 4.0  # seconds for the main thread to end the process
RESCUE_TIMEOUT = 15.0  # seconds for saving in another thread
SAVE_TIMEOUT = 20.0  # further seconds for the main thread after it has raised the error
BEATS, MESSAGES = range(2)  # purposes of a rank's two connections


@dataclass
class Progress:
    """Progress of a rank, as it reported it.

    Attributes:
        count: number of steps of the run's loop; only comparisons with other ranks matter.
        busy: True while the rank saves or evaluates without the others.
        begun: True after the epochs in which kernels are compiled.
        heard: time of the last message.
    """

    count: int = 0
    busy: bool = False
    begun: bool = False
    heard: float = field(default_factory=time.monotonic)


class Heartbeat:
    """Exchanges heartbeats with the other ranks, in separate threads.

    Args:
        rank: this rank's number.
        timeout: seconds that others wait for a rank that hangs.

    Attributes:
        progress: progress of this rank.
        lost: the reason why another rank is lost, or None.
        rescue: saves what can be saved, in another thread, and returns a line of output.
        raising: True once the main thread knows that a rank is lost.
        messages: connections for ``HostAllGather``, by rank. ``close`` closes them.
    """

    def __init__(self, rank: int, timeout: float) -> None:
        self.rank = rank
        self._timeout = timeout
        self._silent = min(SILENCE_TIMEOUT, max(timeout, 4 * BEAT))
        self.progress = Progress()
        self.lost: str | None = None
        self.rescue: Callable[[], str] = str
        self.raising = False
        self._lost = threading.Event()
        self._closed = threading.Event()
        self.messages: dict[int, Connection] = {}
        self._peers: dict[int, Connection] = {}
        self._progress: dict[int, Progress] = {}
        self._server: RendezvousServer | None = None
        self._lock = threading.Lock()

    # ---- begin and end ---------------------------------------------------------------------------

    def listen(self, count: int, local: bool) -> dict[str, Any]:
        """Accept connections of ``count`` other ranks. Called by the first rank.

        Args:
            count: number of other ranks.
            local: True if all ranks are on this machine.

        Returns:
            The address for ``connect``.
        """
        server = self._server = RendezvousServer(local)
        self._start(self._accept, count)
        self._start(self._watch)
        return server.address

    def connect(self, address: dict[str, Any]) -> bool:
        """Connect to the first rank. Returns False if that fails."""
        messages = connect(address, self.rank, MESSAGES)
        peer = messages and connect(address, self.rank, BEATS)
        if messages is None or peer is None:
            return False
        self.messages[0] = messages
        self._peers[0] = peer
        self._progress[0] = Progress()
        self._start(self._listen_to, 0, peer)
        self._start(self._watch)
        return True

    def close(self, error: str = "") -> None:
        """Tell the other ranks that this one ends.

        Args:
            error: the error that ended it; empty for a normal end.
        """
        for rank in [*self._peers]:
            self._send(rank, left=error)
        self._closed.set()
        if self._server:
            self._server.close()
        for peer in self.messages.values():
            peer.close()

    # ---- used by the main thread -----------------------------------------------------------------

    def wait_lost(self, seconds: float) -> str | None:
        """Wait up to ``seconds`` for the loss of a rank. Returns the reason or None."""
        self._lost.wait(seconds)
        self.raising = self.lost is not None
        return self.lost

    @contextlib.contextmanager
    def exempt_from_timeout(self) -> Iterator[None]:
        """Mark this rank as busy within the block, so that others don't take it for hanging."""
        self.progress.busy = True
        try:
            yield
        finally:
            self.progress.busy = False

    # ---- threads ---------------------------------------------------------------------------------

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, name="heartbeat", daemon=True).start()

    def _send(self, to: int, **what: Any) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._peers[to].send_bytes(json.dumps(what).encode())

    def _accept(self, count: int) -> None:
        """Accept connections until all ranks are there, each in a thread, as peers may be slow."""
        assert self._server
        with contextlib.suppress(OSError):  # the server was closed
            while True:
                self._start(self._welcome, self._server.accept(), count)

    def _welcome(self, stranger: socket.socket, count: int) -> None:
        """Receive a rank's heartbeats. Closes connections of other programs."""
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
        except OSError:  # the rank tries again
            return
        if use == BEATS:  # this rank sends its progress from now on
            self._peers[rank] = peer
            self._progress[rank] = Progress()
        if len(self._peers) == len(self.messages) == count:
            self._server.close()
        if use == BEATS:
            self._listen_to(rank, peer)

    def _listen_to(self, rank: int, peer: Connection) -> None:
        """Receive a rank's messages until it leaves."""
        progress = self._progress[rank]
        reason = f"rank {rank} has died"
        try:
            with peer:
                while True:
                    message = json.loads(peer.recv_bytes())
                    progress.heard = time.monotonic()
                    if "lost" in message:
                        self._mark_lost(message["lost"])
                    elif "left" in message:
                        self._progress.pop(rank, None)
                        if message["left"]:
                            self._mark_lost(f"rank {rank} has ended: {message['left']}")
                        return
                    else:
                        progress.count, progress.busy, progress.begun = message["progress"]
        except (OSError, EOFError):
            pass
        except (ValueError, KeyError, TypeError):
            reason = f"rank {rank} has sent a heartbeat that can't be read"
        if self._progress.pop(rank, None):
            self._mark_lost(reason)

    def _watch(self) -> None:
        """Send this rank's progress and check the others', twice a second."""
        counts_before: list[int] = []
        since = time.monotonic()
        while not self._closed.wait(BEAT):
            mine = self.progress
            now = time.monotonic()
            for rank in [*self._progress]:
                self._send(rank, progress=[mine.count, mine.busy, mine.begun])
            for rank, other in [*self._progress.items()]:
                if now - other.heard > self._silent:
                    self._mark_lost(f"rank {rank} hasn't answered for {self._silent:.0f} s")
            if self.rank:  # only the first rank decides that a rank hangs
                continue
            ranks = {0: mine, **self._progress}
            counts = [other.count for other in ranks.values()]
            if counts != counts_before or any(other.busy for other in ranks.values()):
                counts_before = counts
                since = now
            begun = all(other.begun for other in ranks.values())
            timeout = self._timeout if begun else max(COMPILE_TIMEOUT, self._timeout)
            if now - since > timeout and min(counts) < max(counts):
                rank = min(ranks, key=lambda number: ranks[number].count)
                self._mark_lost(f"rank {rank} hangs: the others have waited {timeout:.0f} s")

    def _mark_lost(self, why: str) -> None:
        """Record that a rank is lost. The first rank reports it to all others."""
        with self._lock:
            if self.lost is not None or self._closed.is_set():
                return
            self.lost = why
        for other in [*self._progress] if not self.rank else []:
            self._send(other, lost=why)
        self._lost.set()
        self._start(self._end)

    def _end(self) -> None:
        """End the process, unless the main thread does it in time.

        After everything is saved, the main thread may still wait forever for threads in which MLX
        exchanges messages.
        """
        if self._closed.wait(END_TIMEOUT) or (self.raising and self._closed.wait(SAVE_TIMEOUT)):
            atexit.register(_leave)
            time.sleep(END_TIMEOUT)
            _leave()
        write_error(f"error: {self.lost}")
        helper = threading.Thread(target=self._rescue, daemon=True)
        helper.start()
        helper.join(RESCUE_TIMEOUT)
        os._exit(2)

    def _rescue(self) -> None:
        try:
            if line := self.rescue():
                write_error(line)
        except Exception as error:
            write_error(f"not saved: {error}")


def _leave() -> None:
    """End the process after its output is written."""
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(2)
