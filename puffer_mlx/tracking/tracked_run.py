"""Send a run's records to its trackers (``base.track``), from the run's start to its end."""

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
from puffer_mlx.tracking.scores import EVALUATION_PREFIX
from puffer_mlx.tracking.tracker_process import (
    FINISH_TIMEOUT,
    complete_lines,
    read_last_tracked_step,
)
from puffer_mlx.tracking.trackers import RunResult, TrackedRun, find_tracker

PACKAGE_PARENT = str(Path(__file__).parents[2])  # import path of this package
QUIET_WAIT = 1.0  # seconds that trackers may take to finish before a message is printed
MESSAGES = {  # text to print after a tracker's name, by kind of answer (see tracker_process)
    "started": "",
    "no_videos": " gets no further videos",
    "error": " is dropped, the run goes on",
}


@dataclass(frozen=True)
class RunContext:
    """A run's configuration, name and log path: what its trackers need.

    Args:
        config: The effective configuration.
        run_id: Name of the run.
        path: Path of the run's log (``LogFile``).
        overlap: True if rollouts are collected during training; this resolves the option ``auto``.
    """

    config: Config
    run_id: str
    path: Path
    overlap: bool

    def settings(self) -> dict[str, Any]:
        """Return the run's configuration as nested dictionaries, with every value resolved."""
        settings = to_dict(self.config)
        settings["base"]["run_id"] = self.run_id
        settings["train"]["overlap"] = self.overlap
        return settings


def tracker_names(config: Config) -> list[str]:
    """Return the names of the trackers that a configuration selects, without duplicates."""
    names = [name.strip() for name in config.base.track.split(",")]
    if config.base.wandb:
        names.append("wandb")
    return [name for name in dict.fromkeys(names) if name != NO_TRACKER]


def check_trackers_installed(config: Config) -> None:
    """Check, before a run starts, that the packages of its trackers are installed.

    Raises:
        UserError: A package isn't installed.
    """
    missing = [
        name for name in tracker_names(config) if not _is_installed(find_tracker(name).package)
    ]
    if not missing:
        return
    packages = ", ".join(find_tracker(name).package for name in missing)
    verb = "isn't" if len(missing) == 1 else "aren't"
    raise UserError(
        f"base.track names {', '.join(missing)}, and {packages} {verb} installed",
        f"pip install 'puffer-mlx[{','.join(missing)}]', or leave it out: --track none",
    )


def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    # A folder ./wandb, where wandb stores runs, is found too, as a package without an origin.
    return spec is not None and spec.origin is not None


def last_step_in_log(log: Path) -> int | None:
    """Return the environment steps of the last epoch in a run's log, or None for an empty log."""
    records = read_records(log)
    return int(records[-1]["agent_steps"]) if records else None


class Trackers:
    """Context manager around training and evaluation that sends a run's records to its trackers.

    Each tracker has a separate process (``TrackerProcess``), so a tracker can neither raise an
    error in this process nor delay the training. A tracker that fails is dropped with a message.
    All trackers are finished however the run ends.

    A resumed run resumes the trackers' runs. The last step that a tracker has is stored in a file
    next to the log, ``RUN_ID.NAME.json`` (see ``tracker_process``).

    Args:
        run: Configuration, name and log of the run.
        names: Names of the trackers (``tracker_names``).
        resumed_step: Environment steps at which the run resumes; None for a new run.
        last_logged_step: Environment steps of the last record in a resumed run's log, before later
            records were removed; None for an empty log.

    Attributes:
        done: True once the run has reached its last epoch; set by the caller.
        weights: Path of the last checkpoint's weights, or None; set by the caller.
    """

    def __init__(
        self,
        run: RunContext,
        names: list[str],
        resumed_step: int | None = None,
        last_logged_step: int | None = None,
    ) -> None:
        self.done = False
        self.weights: Path | None = None
        self._scores: dict[str, float] = {}
        description = _description(run, resumed_step) if names else {}
        self._processes = [TrackerProcess(name) for name in names]
        for process in self._processes:
            state_file = run.path.with_suffix(f".{process.name}.json")
            start = dict(description)
            if resumed_step is not None:
                start["last_tracked_step"] = read_last_tracked_step(state_file, last_logged_step)
            process.send(json_text({"start": start, "state_file": str(state_file)}))

    def log(self, record: dict[str, float], video: Path | None = None) -> list[str]:
        """Send an epoch's record to all trackers. Returns the trackers' messages to print.

        Args:
            record: Metrics of the epoch by name.
            video: Path of a GIF of the epoch's policy, for trackers that show videos.
        """
        if not self._processes:
            return []
        if scores := _final_scores(record):
            self._scores = scores
        video_path = {"video": str(video.resolve())} if video else {}
        line = json_text({"step": record["agent_steps"], "metrics": record, **video_path})
        for process in self._processes:
            process.send(line)
        return self._new_messages()

    def set_evaluation_scores(self, record: dict[str, float]) -> None:
        """Use the scores of the evaluation after training, a record, as the final scores."""
        self._scores = _final_scores(record) or self._scores

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = "failed" if error else "finished" if self.done else "stopped"
        result = RunResult(status, self._scores, str(self.weights or ""))._asdict()
        # The first Ctrl-C stops the run regularly; a second one is raised as KeyboardInterrupt.
        interrupted = error is not None and not isinstance(error, Exception)
        for process in self._processes:
            process.send(json_text({"finish": result}))
        if not interrupted:
            self._wait()

    def _wait(self) -> None:
        """Wait for all trackers to finish. After the timeout or Ctrl-C, kill the remaining ones."""
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
            reason = f"didn't finish within {FINISH_TIMEOUT:g} seconds"
        except KeyboardInterrupt:
            late = [process for process in self._processes if not process.ends_by(0)]
            reason = "wasn't waited for"
        lines = [
            f"track  {process.name} {reason}; what it has on disk stays there" for process in late
        ]
        for process in self._processes:
            process.kill()
        for line in [*self._new_messages(), *lines]:
            output.print_important(line)

    def _new_messages(self) -> list[str]:
        """Return the messages that trackers sent since the last call, as lines to print."""
        return [
            f"track  {process.name}{MESSAGES[kind]}: {text}"
            for process in self._processes
            for message in process.messages()
            for kind, text in message.items()
            if kind in MESSAGES
        ]


def _description(run: RunContext, resumed_step: int | None) -> dict[str, Any]:
    """Describe a run for its trackers. Returns the fields of ``TrackedRun`` as a dictionary."""
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
        resumed_step=resumed_step,
    )._asdict()


def _final_scores(record: dict[str, float]) -> dict[str, float]:
    """Return a record's environment metrics as final scores; those of an evaluation if present."""
    for prefix in EVALUATION_PREFIX, "env/":
        if names := [name for name in record if name.startswith(prefix)]:
            return {f"final/{name.removeprefix(prefix)}": record[name] for name in names}
    return {}


# ---- the process of a tracker --------------------------------------------------------------------


class TrackerProcess:
    """A tracker's process: starts it, sends it lines and receives its messages.

    Lines and messages go through deleted files instead of pipes, so a tracker that is slow or hangs
    never blocks the trainer. No method raises an error because of the tracker.

    Args:
        name: Name of the tracker.

    Attributes:
        error: Why the tracker was dropped; "" while it is in use.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.error = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._messages: list[dict[str, str]] = []  # since the last call of ``messages``
        self._end_reported = False
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            self._lines = open(path / "lines", "ab", buffering=0)  # noqa: SIM115
            with (
                open(path / "lines", "rb") as input_file,
                open(path / "messages", "wb") as output_file,
            ):
                self._message_file = open(path / "messages", "rb")  # noqa: SIM115
                try:
                    self.process = _start_process(name, input_file, output_file)
                except OSError as error:
                    self._on_message(
                        error=f"its process can't be started: {error.strerror or error}"
                    )

    def send(self, line: str) -> None:
        """Send a line to the tracker's process."""
        data = line.encode() + b"\n"
        try:
            if not self.error and self._lines.write(data) < len(data):
                raise OSError("the disk is full")
        except OSError as error:
            self._on_message(error=f"its records can't be stored: {error.strerror or error}")

    def messages(self) -> list[dict[str, str]]:
        """Return the tracker's messages since the last call (``tracker_process`` lists them).

        If the process ended unexpectedly, they include ``{"error": …}``.
        """
        self._read_messages()
        messages = self._messages
        self._messages = []
        return messages

    def ends_by(self, deadline: float) -> bool:
        """Wait for the tracker's process to end. Returns False if it still runs at the deadline.

        Args:
            deadline: Time of ``time.monotonic``.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self.process:
                self.process.wait(max(0.0, deadline - time.monotonic()))
            return True
        return False

    def kill(self) -> None:
        """Kill the tracker's process, if it runs, and all processes that it started."""
        if self.process:
            if self.process.poll() is None:
                self._end_reported = True  # its end, caused here, is no error to report
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._read_messages()
        self._lines.close()
        self._message_file.close()

    def _read_messages(self) -> None:
        if self._message_file.closed:
            return
        has_ended = self.process is not None and self.process.poll() is not None
        for line in complete_lines(self._message_file):
            self._on_message(**json.loads(line))
        if has_ended and not self._end_reported:
            self._on_message(error="its process has ended")

    def _on_message(self, **message: str) -> None:
        self.error = self.error or message.get("error", "")
        self._end_reported = self._end_reported or bool({"finished", "error"} & message.keys())
        self._messages.append(message)


def _start_process(name: str, lines: IO[bytes], messages: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a tracker's process with this Python. Ctrl-C in the terminal doesn't reach it."""
    paths = [PACKAGE_PARENT, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        program.python_command("-m", tracker_process.__name__, name, str(os.getpid())),
        stdin=lines,
        stdout=messages,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )
