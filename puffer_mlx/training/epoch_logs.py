"""Make the log records of epochs, and describe the progress of an unfinished epoch."""

import math
import time
from typing import Any, NamedTuple

import mlx.core as mx
import psutil

from puffer_mlx.config import Config
from puffer_mlx.profiling.phases import format_duration
from puffer_mlx.tracking.scores import MEAN_SCORE, LastScores
from puffer_mlx.training.collector import Rollout

Logs = dict[str, float]

MEMORY_INTERVAL = 0.1  # seconds between two measurements of the process's memory


class EpochLogs:
    """Make the log record of each epoch, and keep the scores of the last episodes.

    Args:
        config: Configuration of the run.

    Attributes:
        scores: Scores of the last episodes, if the environments report single episodes.
    """

    def __init__(self, config: Config) -> None:
        self.scores = LastScores()
        self._config = config
        # PufferLib 5.0 logs ``importance``, the mean ratio of new to old probabilities.
        self._logs_importance = config.facts.release == "5.0"
        self._process = psutil.Process()
        self._started = time.perf_counter()
        self._resident = 0  # memory of the process in bytes, when last measured
        self._measured = -math.inf  # time of the last measurement

    @property
    def uptime(self) -> float:
        """Seconds since the run began, without the pauses before it was resumed."""
        return time.perf_counter() - self._started

    def restore(self, uptime: float, scores: Any) -> None:
        """Restore the uptime (seconds) and the scores from a checkpoint."""
        self._started = time.perf_counter() - uptime
        self.scores.restore(scores)

    def record(
        self,
        epoch: int,
        steps: int,
        rollout: Rollout,
        losses: Logs,
        wall: float,
        train: float,
        phases: Logs,
    ) -> Logs:
        """Return the log record of an epoch, metrics by name.

        Memory is in GiB. The memory of the process is measured at most once per
        ``MEMORY_INTERVAL``, because measuring is slow.

        Args:
            epoch: Epochs trained so far.
            steps: Environment steps trained so far.
            rollout: Rollout of the epoch.
            losses: Metrics of the update, by name.
            wall: Duration of the epoch in seconds.
            train: Duration of the update in seconds.
            phases: Duration of each phase in seconds, by name.
        """
        if rollout.scores is not None:
            self.scores.add(rollout.scores)
        mean = self.scores.mean()
        last_scores = {} if mean is None else {MEAN_SCORE: mean}
        record = {
            "SPS": self._config.batch_size / wall,
            "agent_steps": steps,
            "uptime": self.uptime,
            "epoch": epoch,
            **environment_logs(rollout.logs),
            **last_scores,
            **{f"loss/{name}": value for name, value in losses.items()},
        }
        if self._logs_importance and "kl" in losses:
            # kl is the mean of (ratio - 1 - log ratio), and old_kl the mean of (-log ratio).
            record["importance"] = 1 + losses["kl"] - losses["old_kl"]
        record["perf/rollout"] = rollout.seconds
        record["perf/train"] = train
        record["perf/epoch"] = wall
        record |= rollout.games or {}
        # In the last epoch with overlap, no next rollout is collected, so its phases are omitted.
        collected = bool(phases.get("eval_env"))
        for name, seconds in phases.items():
            if collected or not name.startswith("eval_"):
                record[f"perf/{name}"] = seconds
        now = time.perf_counter()
        if now - self._measured > MEMORY_INTERVAL:
            self._resident = self._process.memory_info().rss
            self._measured = now
        record["util/cpu_mem_gb"] = self._resident / 2**30
        record["util/mlx_mem_gb"] = mx.get_active_memory() / 2**30
        return record


def environment_logs(logs: dict[str, float]) -> Logs:
    """Return the environments' metrics under their names in a record: ``env/NAME``."""
    return {f"env/{name}": float(value) for name, value in logs.items()}


def merge_means(total: Logs, new: Logs) -> Logs:
    """Merge the mean metrics of two periods, weighted by their numbers of episodes (env/n)."""
    if not new or not total:
        return new or total
    old_count = total["env/n"]
    new_count = new["env/n"]
    count = old_count + new_count
    merged = {
        name: (total.get(name, 0) * old_count + new.get(name, 0) * new_count) / count
        for name in new
    }
    return {**merged, "env/n": count}


class EpochProgress(NamedTuple):
    """Progress of an unfinished epoch.

    Args:
        seconds: Time since the epoch started, in seconds.
        usual_seconds: Duration of the previous epoch in seconds. 0 if unknown: in the first epoch
            of the process, or if the previous one compiled.
        phase: ``rollout`` or ``training``.
        fraction: Finished fraction of the phase, 0 to 1, or None when unknown.
    """

    seconds: float
    usual_seconds: float
    phase: str
    fraction: float | None

    def text(self, epoch: int, stopping: bool) -> str:
        """Return the progress as one line of text.

        Args:
            epoch: Number of the epoch, from 1.
            stopping: True if the run stops after this epoch. The line then contains only the
                remaining time.
        """
        if stopping:
            left = self.usual_seconds - self.seconds
            when = f", in about {format_duration(left)}" if left >= 1 else ", soon"
            return "stops after this epoch" + (when if self.usual_seconds else "")
        percent = "" if self.fraction is None else f" {100 * self.fraction:.0f} %"
        total = f" of about {format_duration(self.usual_seconds)}" if self.usual_seconds else ""
        return f"epoch {epoch}: {self.phase}{percent}, {format_duration(self.seconds)}{total}"
