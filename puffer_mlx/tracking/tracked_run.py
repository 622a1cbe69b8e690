"""A run in the trackers that ``base.track`` names, from its start to its end."""

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
from puffer_mlx.system.json_text import is_finite, json_text, record_of
from puffer_mlx.system.version import machine
from puffer_mlx.tracking import tracker_process
from puffer_mlx.tracking.scores import EVALUATION
from puffer_mlx.tracking.tracker_process import PATIENCE, known_to, whole_lines
from puffer_mlx.tracking.trackers import RunResult, TrackedRun, find

PACKAGES = str(Path(__file__).parents[2])  # where this package is imported from
SOON = 1.0  # seconds of waiting that nobody needs to be told of
SAID = {  # by a tracker's process: what is said of the tracker then
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
        overlap: Whether rollouts are collected during training; the configuration may say ``auto``.
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
    """The trackers that a configuration names, each once."""
    names = [name.strip() for name in config.base.track.split(",")]
    names += ["wandb"] * config.base.wandb
    return [name for name in dict.fromkeys(names) if name != NO_TRACKER]


def refuse_missing(config: Config) -> None:
    """Refuse trackers that aren't installed; call it before anything is begun.

    Raises:
        UserError: a package isn't there.
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
    """The environment steps of the last epoch in a log; None if there is none, or no log."""
    last = None
    with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as file:
        for line in file:
            record = record_of(line) or {}  # one may be torn by a kill
            steps = record.get("agent_steps")
            last = int(steps) if "epoch" in record and is_finite(steps) else last
    return last


class Trackers:
    """Tells a run's trackers of it; a context manager around the training and its evaluation.

    However it ends, they are told. Nothing here raises for a tracker's sake, or makes the training
    wait: each tracker is in a process of its own (``TrackerLink``). One that fails is dropped with
    a line.

    A run that goes on goes on in the same runs there. What a tracker knows of it is kept beside the
    log, in ``RUN_ID.NAME.json`` (see ``tracker_process``).

    Args:
        run: the configuration, the run's name and its log.
        names: of the trackers; ``tracker_names``.
        step: where the run goes on, in environment steps; None if it begins.
        logged: ``last_step`` of its log, before what comes again was cut off from that.

    Attributes:
        done: whether the run came to its last epoch.
        weights: the file of the last checkpoint's, if there is one.
    """

    def __init__(
        self, run: RunLog, names: list[str], step: int | None = None, logged: int | None = None
    ) -> None:
        self.done = False
        self.weights: Path | None = None
        self._scores: dict[str, float] = {}
        description = _described(run, step) if names else {}
        self._links = [TrackerLink(name) for name in names]
        for link in self._links:
            kept = run.path.with_suffix(f".{link.name}.json")
            known = None if step is None else known_to(kept, logged)
            link.send(json_text({"start": {**description, "known_to": known}, "keep": str(kept)}))

    def log(self, logs: dict[str, float], video: Path | None = None) -> list[str]:
        """Take an epoch's record; returns lines that a person should see, few in a run.

        Args:
            logs: the record.
            video: a GIF of that epoch's policy, for trackers that show videos.
        """
        if not self._links:
            return []
        if scores := _scores(logs):
            self._scores = scores
        shown = {"video": str(video.resolve())} if video else {}
        line = json_text({"step": logs["agent_steps"], "metrics": logs, **shown})
        for link in self._links:
            link.send(line)
        return self._said()

    def evaluated(self, record: dict[str, float]) -> None:
        """Take the record of the evaluation after training: its scores are the final ones."""
        self._scores = _scores(record) or self._scores

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = "failed" if error else "finished" if self.done else "stopped"
        result = RunResult(status, self._scores, str(self.weights or ""))._asdict()
        hurried = error is not None and not isinstance(error, Exception)  # a second Ctrl-C
        for link in self._links:
            link.send(json_text({"finish": result}))
        if not hurried:
            self._wait()

    def _wait(self) -> None:
        """Wait until all have ended; those that don't soon, or at a Ctrl-C, are ended."""
        deadline = time.monotonic() + PATIENCE
        try:
            waiting = [link for link in self._links if not link.ends_by(time.monotonic() + SOON)]
            if waiting:
                names = ", ".join(link.name for link in waiting)
                output.say(f"track  waiting for {names}, {PATIENCE:g} seconds at most")
            late = [link for link in waiting if not link.ends_by(deadline)]
            why = f"didn't finish within {PATIENCE:g} seconds"
        except KeyboardInterrupt:
            late, why = [link for link in self._links if not link.ends_by(0)], "wasn't waited for"
        lines = [f"track  {link.name} {why}; what it has on disk stays there" for link in late]
        for link in self._links:
            link.kill()
        for line in [*self._said(), *lines]:
            output.say(line)

    def _said(self) -> list[str]:
        """Lines of what trackers have said since the last call."""
        return [
            f"track  {link.name}{SAID[what]}: {text}"
            for link in self._links
            for answer in link.answers()
            for what, text in answer.items()
            if what in SAID
        ]


def _described(run: RunLog, step: int | None) -> dict[str, Any]:
    """What every tracker is told of the run."""
    base = run.config.base
    return TrackedRun(
        run_id=run.run_id,
        environment=run.config.slug,
        log_dir=str(run.path.parents[1]),
        project=base.wandb_project,
        group=base.wandb_group,
        tag=base.tag,
        config=run.settings(),
        machine=machine(),
        command=shlex.join(sys.argv),
        step=step,
    )._asdict()


def _scores(record: dict[str, float]) -> dict[str, float]:
    """What environments say in a record, as final scores: those of an evaluation, if it has any."""
    for kind in EVALUATION, "env/":
        if names := [name for name in record if name.startswith(kind)]:
            return {f"final/{name.removeprefix(kind)}": record[name] for name in names}
    return {}


# ---- the process of one --------------------------------------------------------------------------


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
        self._answers: list[dict[str, str]] = []  # since the last call of ``answers``
        self._ends = False  # by its own words
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            self._lines = open(path / "lines", "ab", buffering=0)  # noqa: SIM115
            with open(path / "lines", "rb") as reading, open(path / "answers", "wb") as answers:
                self._said = open(path / "answers", "rb")  # noqa: SIM115
                try:
                    self.process = _begin(name, reading, answers)
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

    def answers(self) -> list[dict[str, str]]:
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


def _begin(name: str, lines: IO[bytes], answers: IO[bytes]) -> subprocess.Popen[bytes]:
    """The process: this Python, away from the terminal and its Ctrl-C."""
    paths = [PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        program.python("-m", tracker_process.__name__, name, str(os.getpid())),
        stdin=lines,
        stdout=answers,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )
