"""The trainer's side of a tracker's process: files, which never make the trainer wait."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from puffer_mlx.system import program
from puffer_mlx.tracking import tracker_process
from puffer_mlx.tracking.tracker_process import whole_lines

PACKAGES = str(Path(__file__).parents[2])  # where this package is imported from


class TrackerLink:
    """Starts a tracker's process, hands it lines, and takes what it says.

    Both go through files that nobody else finds: one that is slow, or hangs, reads later, or never.
    Nothing here raises for a tracker's sake.

    Args:
        name: of the tracker.

    Attributes:
        fault: why it was dropped; empty if it wasn't.
    """

    def __init__(self, name: str) -> None:
        self.name, self.fault = name, ""
        self.process: subprocess.Popen[bytes] | None = None
        self._answers: list[dict] = []  # that nobody has taken
        self._ends = False  # by its own words
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            self._lines = open(path / "lines", "ab", buffering=0)  # noqa: SIM115
            with open(path / "lines", "rb") as given, open(path / "answers", "wb") as answers:
                self._said = open(path / "answers", "rb")  # noqa: SIM115
                try:
                    self.process = _begin(name, given, answers)
                except OSError as error:
                    self._hear(fault=f"its process can't be started: {error.strerror or error}")

    def send(self, line: str) -> None:
        """Hand over a line."""
        data = line.encode() + b"\n"
        try:
            if not self.fault and self._lines.write(data) < len(data):
                raise OSError("the disk is full")
        except OSError as error:
            self._hear(fault=f"its records can't be kept: {error.strerror or error}")

    def answers(self) -> list[dict]:
        """What it has said since the last call, dictionaries (see ``tracker_process``).

        There is a ``{"fault": …}`` also where its process has ended otherwise.
        """
        self._take()
        answers, self._answers = self._answers, []
        return answers

    def ends_by(self, deadline: float) -> bool:
        """Wait for the end of the process, at most until then; whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self.process:
                self.process.wait(max(0.0, deadline - time.monotonic()))
            return True
        return False

    def kill(self) -> None:
        """End the process, and what it has started in its group."""
        if self.process:
            self._ends = self._ends or self.process.poll() is None
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._take()
        self._lines.close()
        self._said.close()

    def _take(self) -> None:
        if self._said.closed:
            return
        has_ended = self.process is not None and self.process.poll() is not None
        for line in whole_lines(self._said):
            self._hear(**json.loads(line))
        if has_ended and not self._ends:
            self._hear(fault="its process has ended")

    def _hear(self, **answer: str) -> None:
        self.fault = self.fault or answer.get("fault", "")
        self._ends = self._ends or bool({"finished", "fault"} & answer.keys())
        self._answers.append(answer)


def _begin(name: str, given: IO[bytes], answers: IO[bytes]) -> subprocess.Popen[bytes]:
    """The process: this Python, away from the terminal and its Ctrl-C."""
    paths = [PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        program.python("-m", tracker_process.__name__, name, str(os.getpid())),
        stdin=given,
        stdout=answers,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )
