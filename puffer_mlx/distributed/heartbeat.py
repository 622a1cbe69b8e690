"""Detect lost ranks by heartbeats, since MLX's collectives may wait forever for a lost rank.

Every half second, each rank reports its progress to rank 0, and rank 0 reports to all ranks, over
TCP (``messages.py``). Separate threads do this while a rank computes.

| a rank ... | how the loss is detected |
| --- | --- |
| fails | it sends the reason before it ends |
| is killed | its connection is closed |
| has no network or no power | no heartbeat for ``SILENCE_TIMEOUT`` seconds |
| hangs | its progress is behind that of others, and no rank makes progress |

The next exchange then raises an error in the main thread. If the main thread is blocked in a
collective, another thread saves what it can and ends the process.
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

from puffer_mlx.distributed.messages import WELCOME, RendezvousServer, connect, to_connection
from puffer_mlx.system.signals import write_error

BEAT_INTERVAL = 0.5  # seconds between two heartbeats
SILENCE_TIMEOUT = 10.0  # seconds without a heartbeat after which a rank is lost
COMPILE_TIMEOUT = 300.0  # seconds without progress in the first epochs, which compile kernels
END_TIMEOUT = 4.0  # seconds for the main thread to end the process
RESCUE_TIMEOUT = 15.0  # seconds for saving in another thread
SAVE_TIMEOUT = 20.0  # additional seconds for the main thread if it has raised the error
BEATS, MESSAGES = range(2)  # purposes of a rank's two connections


@dataclass
class RankProgress:
    """Progress of one rank, a process of a distributed run, as reported in its heartbeats.

    Attributes:
        count: Number of minibatches and exchanges so far, compared with that of other ranks.
        busy: True while the rank saves or evaluates without the others.
        has_compiled: True after the epochs in which kernels are compiled.
        last_message: Time of the rank's last message, ``time.monotonic()``.
    """

    count: int = 0
    busy: bool = False
    has_compiled: bool = False
    last_message: float = field(default_factory=time.monotonic)


class Heartbeat:
    """Send this rank's heartbeats to other ranks and receive theirs, to detect lost ranks.

    Separate threads send and receive.

    Args:
        rank: Number of this rank.
        timeout: Seconds without progress after which a rank counts as hanging.

    Attributes:
        progress: Progress of this rank.
        lost: Reason why another rank is lost, or None.
        rescue: Saves what can be saved, in another thread, and returns a line to print.
        raising: True once the main thread knows that a rank is lost, so that it raises an error.
        messages: Connections for ``HostAllGather``, by rank. ``close`` closes them.
    """

    def __init__(self, rank: int, timeout: float) -> None:
        self.rank = rank
        self._timeout = timeout
        self._silence_timeout = min(SILENCE_TIMEOUT, max(timeout, 4 * BEAT_INTERVAL))
        self.progress = RankProgress()
        self.lost: str | None = None
        self.rescue: Callable[[], str] = str  # nothing to save, no line to print
        self.raising = False
        self._is_lost = threading.Event()
        self._closed = threading.Event()
        self.messages: dict[int, Connection] = {}
        self._peers: dict[int, Connection] = {}
        self._progress: dict[int, RankProgress] = {}
        self._server: RendezvousServer | None = None
        self._lock = threading.Lock()

    # ---- begin and end ---------------------------------------------------------------------------

    def listen(self, count: int, local: bool) -> dict[str, Any]:
        """Start a server on rank 0 that accepts the other ranks' connections. Returns its address.

        Args:
            count: Number of other ranks.
            local: True if all ranks run on this machine.

        Returns:
            The address that other ranks pass to ``connect``.
        """
        server = self._server = RendezvousServer(local)
        self._start(self._accept, count)
        self._start(self._watch)
        return server.address

    def connect(self, address: dict[str, Any]) -> bool:
        """Connect this rank to rank 0 and start to send heartbeats. Returns True if that works.

        Args:
            address: Result of ``listen`` on rank 0.

        Returns:
            False if rank 0 can't be reached.
        """
        messages = connect(address, self.rank, MESSAGES)
        if messages is None:
            return False
        peer = connect(address, self.rank, BEATS)
        if peer is None:
            return False
        self.messages[0] = messages
        self._peers[0] = peer
        self._progress[0] = RankProgress()
        self._start(self._listen_to, 0, peer)
        self._start(self._watch)
        return True

    def close(self, error: str = "") -> None:
        """Tell the other ranks that this rank ends, normally or by an error; close the connections.

        Args:
            error: Error that ends this rank; "" for a normal end.
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
        """Wait at most ``seconds`` for a rank to be lost. Returns the reason, else None."""
        self._is_lost.wait(seconds)
        self.raising = self.lost is not None
        return self.lost

    @contextlib.contextmanager
    def exempt_from_timeout(self) -> Iterator[None]:
        """Mark this rank as busy during a ``with`` block, so that it doesn't count as hanging."""
        self.progress.busy = True
        try:
            yield
        finally:
            self.progress.busy = False

    # ---- threads ---------------------------------------------------------------------------------

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, name="heartbeat", daemon=True).start()

    def _send(self, rank: int, **message: Any) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._peers[rank].send_bytes(json.dumps(message).encode())

    def _accept(self, count: int) -> None:
        """Accept connections, each served by a new thread, until all other ranks are connected."""
        assert self._server
        with contextlib.suppress(OSError):  # the server was closed
            while True:
                self._start(self._welcome, self._server.accept(), count)

    def _welcome(self, new_socket: socket.socket, count: int) -> None:
        """Handle a new connection: receive a rank's messages, or close it if no rank opened it."""
        assert self._server
        rank, purpose = self._server.verify_greeting(new_socket) or (0, BEATS)
        if not 0 < rank <= count or purpose not in (BEATS, MESSAGES):
            new_socket.close()
            return
        peer = to_connection(new_socket)
        if purpose == MESSAGES:
            self.messages[rank] = peer
        try:
            os.write(peer.fileno(), WELCOME)
        except OSError:  # ``messages.connect`` tries another address
            return
        if purpose == BEATS:  # ``_watch`` sends heartbeats to the ranks in these dictionaries
            self._peers[rank] = peer
            self._progress[rank] = RankProgress()
        if len(self._peers) == len(self.messages) == count:
            self._server.close()
        if purpose == BEATS:
            self._listen_to(rank, peer)

    def _listen_to(self, rank: int, peer: Connection) -> None:
        """Receive another rank's heartbeats until that rank ends, and record if it is lost."""
        progress = self._progress[rank]
        reason = f"rank {rank} has died"
        try:
            with peer:
                while True:
                    message = json.loads(peer.recv_bytes())
                    progress.last_message = time.monotonic()
                    if "lost" in message:
                        self._mark_lost(message["lost"])
                    elif "left" in message:
                        self._progress.pop(rank, None)
                        if message["left"]:
                            self._mark_lost(f"rank {rank} has ended: {message['left']}")
                        return
                    else:
                        count, busy, has_compiled = message["progress"]
                        progress.count = count
                        progress.busy = busy
                        progress.has_compiled = has_compiled
        except (OSError, EOFError):
            pass
        except (ValueError, KeyError, TypeError):
            reason = f"rank {rank} has sent a heartbeat that can't be read"
        if self._progress.pop(rank, None):  # the connection ended without a message
            self._mark_lost(reason)

    def _watch(self) -> None:
        """Send this rank's progress twice a second, and check that other ranks make progress."""
        previous_counts: list[int] = []
        since = time.monotonic()
        while not self._closed.wait(BEAT_INTERVAL):
            mine = self.progress
            now = time.monotonic()
            for rank in [*self._progress]:
                self._send(rank, progress=[mine.count, mine.busy, mine.has_compiled])
            for rank, other in [*self._progress.items()]:
                if now - other.last_message > self._silence_timeout:
                    self._mark_lost(
                        f"rank {rank} hasn't answered for {self._silence_timeout:.0f} s"
                    )
            if self.rank:  # only rank 0 decides that a rank hangs
                continue
            ranks = {0: mine, **self._progress}
            counts = [other.count for other in ranks.values()]
            if counts != previous_counts or any(other.busy for other in ranks.values()):
                previous_counts = counts
                since = now
            has_compiled = all(other.has_compiled for other in ranks.values())
            timeout = self._timeout if has_compiled else max(COMPILE_TIMEOUT, self._timeout)
            if now - since > timeout and min(counts) < max(counts):
                rank = min(ranks, key=lambda each: ranks[each].count)
                self._mark_lost(f"rank {rank} hangs: the others have waited {timeout:.0f} s")

    def _mark_lost(self, reason: str) -> None:
        """Record the reason why a rank is lost, and end this process. Rank 0 tells the others."""
        with self._lock:
            if self.lost is not None or self._closed.is_set():
                return
            self.lost = reason
        if self.rank == 0:
            for other in [*self._progress]:
                self._send(other, lost=reason)
        self._is_lost.set()
        self._start(self._force_end)

    def _force_end(self) -> None:
        """End this process after a rank was lost, if the main thread doesn't end it in time.

        Even after the main thread has saved everything, it may wait forever for MLX's threads that
        exchange messages.
        """
        has_ended = self._closed.wait(END_TIMEOUT)
        if not has_ended and self.raising:  # the main thread saves the run first
            has_ended = self._closed.wait(SAVE_TIMEOUT)
        if has_ended:
            atexit.register(_exit_at_once)
            time.sleep(END_TIMEOUT)
            _exit_at_once()
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


def _exit_at_once() -> None:
    """Flush the output and end the process at once."""
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(2)
