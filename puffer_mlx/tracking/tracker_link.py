"""The trainer's side of a tracker's process: a queue that never makes the trainer wait."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from puffer_mlx.system import program
from puffer_mlx.tracking import tracker_process

WAITING = 10_000  # records that may wait for a tracker; about 1 KB each
PACKAGES = str(Path(__file__).parents[2])  # where this package is imported from


class TrackerLink:
    """Starts a tracker's process, hands it lines, and hears what it says.

    Nothing here raises for a tracker's sake. A thread of its own writes to the process, another
    reads from it; ``send`` puts a line into a queue, and if that is full leaves it out.

    Args:
        name: of the tracker.
        heard: is called in the reading thread with what it says, a dictionary (see
            ``tracker_process``); with ``{"fault": …}`` also where its process ends otherwise.

    Attributes:
        fault: why it was dropped; empty if it wasn't.
        left_out: lines.
    """

    def __init__(self, name: str, heard: Callable[[dict], None]) -> None:
        self.name, self.fault, self.left_out = name, "", 0
        self._heard, self._killed = heard, False
        self._lines: queue.Queue[str | None] = queue.Queue(WAITING)
        self.process: subprocess.Popen[str] | None = None
        try:
            self.process = _begin(name)
        except OSError as error:
            self.fault = f"its process can't be started: {error.strerror or error}"
            return
        self._reader = threading.Thread(target=self._read, name=f"{name}: answers", daemon=True)
        self._reader.start()
        self._writer = threading.Thread(target=self._write, name=f"{name}: records", daemon=True)
        self._writer.start()

    def send(self, line: str) -> None:
        """Hand over a line soon; at once from the caller's side."""
        if self.fault:
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.left_out += 1

    def finish(self, line: str, deadline: float) -> None:
        """Hand over the last line; ``ends_by`` waits for what it does.

        Args:
            line: that one.
            deadline: of ``time.monotonic``, for records that still wait.
        """
        with contextlib.suppress(queue.Full):
            for last in line, None:
                self._lines.put(last, timeout=max(0.0, deadline - time.monotonic()))

    def ends_by(self, deadline: float) -> bool:
        """Wait for the end of the process, at most until then; whether it has ended."""
        if self.process is None:
            return True
        self._reader.join(max(0.0, deadline - time.monotonic()))
        return not self._reader.is_alive()

    def kill(self) -> None:
        """End the process, and what it has started in its group."""
        if self.process is None or self.process.returncode is not None:
            return
        self._killed = True
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._stop_writing()
        self._writer.join()
        self._reader.join()

    def _write(self) -> None:
        assert self.process and self.process.stdin
        with contextlib.suppress(OSError, ValueError), self.process.stdin as pipe:
            while (line := self._lines.get()) is not None and not self.fault:
                pipe.write(line + "\n")
                if self._lines.empty():
                    pipe.flush()

    def _read(self) -> None:
        assert self.process and self.process.stdout
        said: dict = {}
        with self.process.stdout as answers:
            for line in answers:
                said = json.loads(line)
                self.fault = self.fault or said.get("fault", "")
                self._heard(said)
        if not {"finished", "fault"} & said.keys() and not self._killed:
            self.fault = self.fault or "its process has ended"
            self._heard({"fault": self.fault})
        self._stop_writing()

    def _stop_writing(self) -> None:
        with contextlib.suppress(queue.Full):  # it sees by itself that the pipe is broken
            self._lines.put_nowait(None)


def _begin(name: str) -> subprocess.Popen[str]:
    """The process: this Python, away from the terminal and its Ctrl-C."""
    paths = [PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        program.python("-m", tracker_process.__name__, name),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
        encoding="utf-8",
    )
