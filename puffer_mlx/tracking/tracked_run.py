"""The trackers of a run (``base.track``), from its start to its end."""

import contextlib
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from puffer_mlx.config import Config, to_dict
from puffer_mlx.config.schema import NO_TRACKER
from puffer_mlx.errors import UserError
from puffer_mlx.system import output, program
from puffer_mlx.system.json_text import json_text
from puffer_mlx.system.version import describe_machine
from puffer_mlx.tracking import tracker_process
from puffer_mlx.tracking.json_lines import read_records
from puffer_mlx.tracking.scores import EVALUATION
from puffer_mlx.tracking.tracker_process import FINISH_TIMEOUT, complete_lines, last_logged_step
from puffer_mlx.tracking.trackers import RunResult, TrackedRun, find

PACKAGES = str(Path(__file__).parents[2])  # where this package is imported from
QUIET_WAIT = 1.0  # seconds of waiting before a message
MESSAGES = {  # message of a tracker's process: text after the tracker's name
    "started": "",
    "no_videos": " gets no further videos",
    "fault": " is dropped, the run goes on",
}


@dataclass(frozen=True)
class RunLog:
    """A run and the path of its log.

    Args:
        config: The effective configuration.
        run_id: The run's name.
        path: Path of its lines of JSON (``JsonLines``).
        overlap: True if rollouts are collected during training, also if the option is ``auto``.
    """

    config: Config
    run_id: str
    path: Path
    overlap: bool

    def settings(self) -> dict[str, Any]:
        """Return the configuration as plain nested dictionaries, with every value resolved."""
        settings = to_dict(self.config)
        settings["base"]["run_id"] = self.run_id
        settings["train"]["overlap"] = self.overlap
        return settings


def tracker_names(config: Config) -> list[str]:
    """Return the trackers of a configuration, each once."""
    names = [name.strip() for name in config.base.track.split(",")]
    names += ["wandb"] * config.base.wandb
    return [name for name in dict.fromkeys(names) if name != NO_TRACKER]


def refuse_missing(config: Config) -> None:
    """Refuse trackers that aren't installed; call it before the run starts.

    Raises:
        UserError: A package isn't installed.
    """
    missing = [name for name in tracker_names(config) if not _is_installed(find(name).package)]
    if not missing:
        return
    packages = ", ".join(find(name).package for name in missing)
    verb = "isn't" if len(missing) == 1 else "aren't"
    raise UserError(
        f"base.track names {', '.join(missing)}, and {packages} {verb} installed",
        f"pip install 'puffer-mlx[{','.join(missing)}]', or leave it out: --track none",
    )


def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # a folder ./wandb is no package


def last_step(log: Path) -> int | None:
    """Return the environment steps of the last epoch in a log, or None without one."""
    records = read_records(log)
    return int(records[-1]["agent_steps"]) if records else None


class Trackers:
    """Sends a run's records to its trackers: a context manager around training and evaluation.

    Each tracker has a separate process (``TrackerProcess``), so a tracker neither raises an error
    in this process nor delays the training. A tracker that fails is dropped with a message. All
    trackers are finished however the run ends.

    A resumed run continues the trackers' runs. The last step that a tracker has is stored beside
    the log, in ``RUN_ID.NAME.json`` (see ``tracker_process``).

    Args:
        run: Configuration, name and log of the run.
        names: Names of the trackers (``tracker_names``).
        step: Environment steps at which the run resumes; None for a new run.
        logged: ``last_step`` of the log before it was truncated.

    Attributes:
        done: True once the run has reached its last epoch.
        weights: Weights of the last checkpoint, or None.
    """

    def __init__(
        self, run: RunLog, names: list[str], step: int | None = None, logged: int | None = None
    ) -> None:
        self.done = False
        self.weights: Path | None = None
        self._scores: dict[str, float] = {}
        description = _described(run, step) if names else {}
        self._processes = [TrackerProcess(name) for name in names]
        for process in self._processes:
            kept = run.path.with_suffix(f".{process.name}.json")
            known = None if step is None else last_logged_step(kept, logged)
            process.send(
                json_text({"start": {**description, "known_to": known}, "keep": str(kept)})
            )

    def log(self, logs: dict[str, float], video: Path | None = None) -> list[str]:
        """Send an epoch's record. Returns messages of the trackers to print.

        Args:
            logs: The record.
            video: GIF of the epoch's policy, for trackers that show videos.
        """
        if not self._processes:
            return []
        if scores := _scores(logs):
            self._scores = scores
        shown = {"video": str(video.resolve())} if video else {}
        line = json_text({"step": logs["agent_steps"], "metrics": logs, **shown})
        for process in self._processes:
            process.send(line)
        return self._said()

    def evaluated(self, record: dict[str, float]) -> None:
        """Use the record of the evaluation after training as the final scores."""
        self._scores = _scores(record) or self._scores

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = "failed" if error else "finished" if self.done else "stopped"
        result = RunResult(status, self._scores, str(self.weights or ""))._asdict()
        hurried = error is not None and not isinstance(error, Exception)  # a second Ctrl-C
        for process in self._processes:
            process.send(json_text({"finish": result}))
        if not hurried:
            self._wait()

    def _wait(self) -> None:
        """Wait for all trackers; kill those that exceed the timeout, or all after a Ctrl-C."""
        deadline = time.monotonic() + FINISH_TIMEOUT
        try:
            waiting = [
                process
                for process in self._processes
                if not process.ends_by(time.monotonic() + QUIET_WAIT)
            ]
            if waiting:
                names = ", ".join(process.name for process in waiting)
                line = f"track  waiting for {names}, {FINISH_TIMEOUT:g} seconds at most"
                output.print_important(line)
            late = [process for process in waiting if not process.ends_by(deadline)]
            why = f"didn't finish within {FINISH_TIMEOUT:g} seconds"
        except KeyboardInterrupt:
            late = [process for process in self._processes if not process.ends_by(0)]
            why = "wasn't waited for"
        lines = [
            f"track  {process.name} {why}; what it has on disk stays there" for process in late
        ]
        for process in self._processes:
            process.kill()
        for line in [*self._said(), *lines]:
            output.print_important(line)

    def _said(self) -> list[str]:
        """Return the trackers' messages since the last call as lines."""
        return [
            f"track  {process.name}{MESSAGES[what]}: {text}"
            for process in self._processes
            for answer in process.messages()
            for what, text in answer.items()
            if what in MESSAGES
        ]


def _described(run: RunLog, step: int | None) -> dict[str, Any]:
    """Return the description of the run for every tracker."""
    base = run.config.base
    return TrackedRun(
        run_id=run.run_id,
        environment=run.config.slug,
        log_dir=str(run.path.parents[1]),
        project=base.wandb_project,
        group=None if base.wandb_group == "none" else base.wandb_group,
        tag=base.tag,
        config=run.settings(),
        machine=describe_machine(),
        command=shlex.join(sys.argv),
        step=step,
    )._asdict()


def _scores(record: dict[str, float]) -> dict[str, float]:
    """Return the numbers of environments in a record as final scores, an evaluation's first."""
    for kind in EVALUATION, "env/":
        if names := [name for name in record if name.startswith(kind)]:
            return {f"final/{name.removeprefix(kind)}": record[name] for name in names}
    return {}


# ---- the process of a tracker --------------------------------------------------------------------


class TrackerProcess:
    """Starts the process of a tracker, sends it lines and receives its messages.

    Both use deleted files, so a tracker that is slow or hangs never blocks the trainer. No method
    raises an error because of the tracker.

    Args:
        name: Name of the tracker.

    Attributes:
        fault: Why the tracker was dropped; "" if it is in use.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.fault = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._messages: list[dict[str, str]] = []  # since the last call of ``messages``
        self._ends = False  # reported by the process
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            self._lines = open(path / "lines", "ab", buffering=0)  # noqa: SIM115
            with open(path / "lines", "rb") as reading, open(path / "answers", "wb") as answers:
                self._said = open(path / "answers", "rb")  # noqa: SIM115
                try:
                    self.process = _begin(name, reading, answers)
                except OSError as error:
                    self._on_message(
                        fault=f"its process can't be started: {error.strerror or error}"
                    )

    def send(self, line: str) -> None:
        """Send a line."""
        data = line.encode() + b"\n"
        try:
            if not self.fault and self._lines.write(data) < len(data):
                raise OSError("the disk is full")
        except OSError as error:
            self._on_message(fault=f"its records can't be kept: {error.strerror or error}")

    def messages(self) -> list[dict[str, str]]:
        """Return the messages since the last call (see ``tracker_process``).

        A process that ended unexpectedly gives a message ``{"fault": …}``, too.
        """
        self._take()
        messages = self._messages
        self._messages = []
        return messages

    def ends_by(self, deadline: float) -> bool:
        """Wait for the end of the process. Returns False at the deadline (``time.monotonic``)."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self.process:
                self.process.wait(max(0.0, deadline - time.monotonic()))
            return True
        return False

    def kill(self) -> None:
        """Kill the process and its process group."""
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
        for line in complete_lines(self._said):
            self._on_message(**json.loads(line))
        if has_ended and not self._ends:
            self._on_message(fault="its process has ended")

    def _on_message(self, **answer: str) -> None:
        self.fault = self.fault or answer.get("fault", "")
        self._ends = self._ends or bool({"finished", "fault"} & answer.keys())
        self._messages.append(answer)


def _begin(name: str, lines: IO[bytes], answers: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the process: this Python, in a session without the terminal's Ctrl-C."""
    paths = [PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        program.python_command("-m", tracker_process.__name__, name, str(os.getpid())),
        stdin=lines,
        stdout=answers,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )
