"""The record of an epoch, which a trainer yields, and the progress of one under way."""

import math
import time
from typing import Any, NamedTuple

import mlx.core as mx
import psutil

from puffer_mlx.config import Config
from puffer_mlx.profiling.phases import duration
from puffer_mlx.tracking.scores import SCORE, LastScores
from puffer_mlx.training.collector import Rollout

Logs = dict[str, float]


class EpochLogs:
    """Makes records of epochs; keeps what they need of the epochs before.

    Args:
        config: the run's.

    Attributes:
        scores: of the last episodes, where environments tell each.
    """

    def __init__(self, config: Config) -> None:
        self.scores = LastScores()
        self._config, self._process = config, psutil.Process()
        self._started = time.perf_counter()
        self._resident, self._measured = 0, -math.inf  # bytes, and when that was asked

    @property
    def uptime(self) -> float:
        """Seconds that the run has taken, those of earlier starts included."""
        return time.perf_counter() - self._started

    def restore(self, uptime: float, scores: Any) -> None:
        """Go on from what was saved."""
        self._started = time.perf_counter() - uptime
        self.scores.restore(scores)

    def record(
        self, epoch: int, steps: int, rollout: Rollout, losses: Logs, wall: float, train: float
    ) -> Logs:
        """The record of an epoch, but for its phases.

        Args:
            epoch: epochs trained so far.
            steps: environment steps trained on so far.
            rollout: what was trained on.
            losses: of the learner.
            wall: seconds of the epoch.
            train: seconds of training.
        """
        return {
            "SPS": self._config.batch_size / wall,
            "agent_steps": steps,
            "uptime": self.uptime,
            "epoch": epoch,
            **environment_logs(rollout.logs),
            **self._last_scores(rollout),
            **{f"loss/{name}": value for name, value in losses.items()},
            **importance(losses, self._config.facts.release),
            "perf/rollout": rollout.seconds,
            "perf/train": train,
            "perf/epoch": wall,
        }

    def memory(self) -> Logs:
        """GiB that the process takes, asked ten times a second, and MLX's arrays of the device."""
        if (now := time.perf_counter()) - self._measured > 0.1:
            self._resident, self._measured = self._process.memory_info().rss, now
        return {
            "util/cpu_mem_gb": self._resident / 2**30,
            "util/mlx_mem_gb": mx.get_active_memory() / 2**30,
        }

    def _last_scores(self, rollout: Rollout) -> Logs:
        """The mean score of the last 100 episodes, where environments tell each."""
        if rollout.scores is not None:
            self.scores.take(rollout.scores)
        mean = self.scores.mean()
        return {} if mean is None else {SCORE: mean}


def environment_logs(logs: dict[str, float]) -> Logs:
    """What environments report, by its name in a record."""
    return {f"env/{name}": float(value) for name, value in logs.items()}


def importance(losses: Logs, release: str) -> Logs:
    """The mean ratio of new to old probabilities, which PufferLib 5.0 logs; no loss, no prefix.

    kl is the mean of ratio - 1 - log ratio, and old_kl that of -log ratio.

    Args:
        losses: of the learner.
        release: of PufferLib, whose trainer it is; 4.0's doesn't log it.
    """
    if release != "5.0" or "kl" not in losses:
        return {}
    return {"importance": 1 + losses["kl"] - losses["old_kl"]}


def merge_means(total: Logs, new: Logs) -> Logs:
    """Per-episode means of two periods together, weighted by their episodes env/n."""
    if not new or not total:
        return new or total
    a, b = total["env/n"], new["env/n"]
    merged = {name: (total.get(name, 0) * a + new.get(name, 0) * b) / (a + b) for name in new}
    return {**merged, "env/n": a + b}


def phase_logs(phases: Logs) -> Logs:
    """Seconds by phase."""
    if not phases.get("eval_env"):  # the last epoch of an overlapped run collects nothing
        phases = {name: s for name, s in phases.items() if not name.startswith("eval_")}
    return {f"perf/{name}": value for name, value in phases.items()}


class UnderWay(NamedTuple):
    """An epoch under way.

    Args:
        seconds: since it began.
        usual: seconds that the epoch before took; 0: there was none in this start, or it compiled.
        phase: ``rollout`` or ``training``.
        part: of the phase that is done, 0 to 1; None where that isn't known.
    """

    seconds: float
    usual: float
    phase: str
    part: float | None

    def text(self, epoch: int, stopping: bool) -> str:
        """A line about it.

        Args:
            epoch: its number, from 1.
            stopping: whether the run ends after it: then all that matters is when.
        """
        if stopping:
            left = self.usual - self.seconds
            when = f", in about {duration(left)}" if left >= 1 else ", soon"
            return "stops after this epoch" + (when if self.usual else "")
        part = "" if self.part is None else f" {100 * self.part:.0f} %"
        usual = f" of about {duration(self.usual)}" if self.usual else ""
        return f"epoch {epoch}: {self.phase}{part}, {duration(self.seconds)}{usual}"
