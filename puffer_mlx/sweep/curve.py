"""Read the learning curves of a sweep's runs, and combine the scores of several seeds.

A curve is a list of points with a score and a cost. It is read from the JSON lines that every run
logs (``tracking/json_lines.py``), never from printed output.

With one seed per suggestion, the best of many runs is partly the luckiest. With all seeds for each,
most of the time is spent on bad suggestions. So each suggestion starts with one seed and gets the
others unless it is beaten: another suggestion that costs no more scores better by more than the
noise between seeds. If the better suggestion has all of its seeds, the beaten one is finished. If
it lacks some, it may have been lucky, and the beaten one only waits.
"""

import json
import math
import os
import statistics
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from puffer_mlx.sweep.settings import MEDIAN, WORST
from puffer_mlx.tracking.tracker_process import complete_lines

STEPS_FIELD = "agent_steps"
COST_FIELD = "uptime"


class Point(NamedTuple):
    """Point of a training run's learning curve in a sweep: score, training time and steps.

    Args:
        score: Value of ``[sweep] metric`` in the log.
        cost: Training time in seconds.
        steps: Environment steps of all agents.
    """

    score: float
    cost: float
    steps: float


class Outcome(NamedTuple):
    """The result of a sweep's run: its learning curve, or why it failed.

    Args:
        points: At most ``[sweep] downsample`` points of the curve; the last one is the final
            result. Empty if the run failed.
        error: Why the run failed; empty if it didn't.
        stop_reason: Why the run was stopped early; empty if it wasn't.
    """

    points: list[Point]
    error: str = ""
    stop_reason: str = ""


class CurveReader:
    """Read a run's learning curve from its log while the run writes it.

    If the log is removed, the run starts a new one, and the reader continues with that file.

    Args:
        folder: Folder that will contain the log, the only ``.jsonl`` file in its tree.
        metric: Name of the score in a log record.

    Attributes:
        error: Why the run has failed, for example a score that isn't finite; else "".
        skipped_note: Note on the first line that isn't a record; else "".
        modified_ns: Modification time of the log in nanoseconds, 0 without a log. Records and
            heartbeats (``LogFile.touch``) change it.
    """

    def __init__(self, folder: Path, metric: str) -> None:
        self.error = ""
        self.skipped_note = ""
        self.modified_ns = 0
        self._folder = folder
        self._metric = metric
        self._closed = False
        self._file: BinaryIO | None = None  # stays open so that its inode isn't reused
        self._last_epoch = (0.0, 0.0)  # cost, steps
        self._points: list[Point] = []
        self._evaluated = math.nan

    def new_points(self) -> list[Point]:
        """Read the new records of the run's log. Returns their points of the learning curve.

        Epochs without a score have no point.
        """
        points: list[Point] = []
        while file := self._file or self._open():
            points += self._read_records(file)
            if os.fstat(file.fileno()).st_nlink:
                break
            self._file = file.close()  # the file was removed
        return points

    def close(self) -> None:
        """Close the run's log file, which is then read no more."""
        self._closed = True
        if self._file:
            self._file = self._file.close()

    def _open(self) -> BinaryIO | None:
        """Open the log if it exists. Returns the file, or None without a log."""
        with suppress(OSError):
            if self._closed:
                return None
            path = next(iter(self._folder.rglob("*.jsonl")), None)
            self._file = open(path, "rb") if path else None  # noqa: SIM115
        return self._file

    def _read_records(self, file: BinaryIO) -> list[Point]:
        """Read the new records of a run's open log. Returns their points of the learning curve."""
        self.modified_ns = os.fstat(file.fileno()).st_mtime_ns
        points: list[Point] = []
        for line in complete_lines(file):
            try:
                point = self._add_record(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                text = line.decode(errors="replace").rstrip("\n")
                self.skipped_note = (
                    self.skipped_note or f"a line of its log isn't a record: {text!r:.80}"
                )
            else:
                points += [point] if point else []
        return points

    def _add_record(self, record: dict[str, float | None]) -> Point | None:
        """Add a record of a run's log to its learning curve.

        Returns the new point, or None if the record has no score.
        """
        values = {name: math.nan if x is None else x for name, x in record.items()}
        if "epoch" not in values:  # the evaluation after training
            self._evaluated = values.get(self._metric, math.nan)
            return None
        if not math.isfinite(values.get(self._metric, 0.0)) and not self.error:
            self.error = (
                f"{self._metric} is not a finite number after {values[STEPS_FIELD]:,.0f} steps"
            )
        self._last_epoch = values[COST_FIELD], values[STEPS_FIELD]
        if self._metric not in values:
            return None
        self._points.append(Point(values[self._metric], *self._last_epoch))
        return self._points[-1]

    def curve(self, max_points: int) -> list[Point]:
        """Return the run's learning curve, reduced to a few points; empty without any score.

        The last point is the run's result: cost and steps at the end of training, and the score of
        the evaluation after training, or without one the last score in the log. The points before
        it are averages over ``max_points - 1`` intervals of the run (``mean_points``).
        """
        if not self._points:
            return []
        cost, steps = self._last_epoch
        averages = mean_points(self._points, steps, max_points - 1) if max_points > 1 else []
        score = self._points[-1].score if math.isnan(self._evaluated) else self._evaluated
        return [*(mean for mean in averages if mean.steps < steps), Point(score, cost, steps)]


def mean_points(points: Sequence[Point], steps: float, intervals: int) -> list[Point]:
    """Average a learning curve over intervals of the run, as PufferLib does.

    An interval ends with the first point whose steps reach the next multiple of
    ``steps / intervals``; one point ends at most one interval. Points after the last end are left
    out.

    Args:
        points: Points of the curve, in the order of their steps.
        steps: Environment steps of the entire run.
        intervals: Maximum number of intervals.

    Returns:
        The mean point of each interval.
    """
    averaged: list[Point] = []
    sums = [0.0, 0.0, 0.0]
    count = 0
    for point in points:
        sums = [total + value for total, value in zip(sums, point, strict=True)]
        count += 1
        if point.steps * intervals >= (len(averaged) + 1) * steps:
            averaged.append(Point(*(total / count for total in sums)))
            sums = [0.0, 0.0, 0.0]
            count = 0
    return averaged


# ---- several seeds -------------------------------------------------------------------------------


class HeldOutResults(NamedTuple):
    """Scores of a sweep's run that was trained again with held-out random seeds.

    The search for better configurations doesn't use them.

    Args:
        scores: Scores of the seeds that finished.
        failed: Number of seeds that failed.
    """

    scores: list[float]
    failed: int = 0

    @property
    def seeds(self) -> int:
        """Number of held-out seeds with which the run's training finished or failed."""
        return len(self.scores) + self.failed

    def summary(self, sign: int = 1) -> str:
        """Return the held-out seeds' median score, worst score and number as a text.

        Args:
            sign: -1 if lower scores are better.
        """
        failed = f", {self.failed} failed" if self.failed else ""
        if not self.scores:
            return f"of {self.seeds}{failed}"
        worst = combine_scores(self.scores, WORST, sign)
        end = "lowest" if sign > 0 else "highest"
        median = statistics.median(self.scores)
        return f"median {median:.4g}, {end} {worst:.4g} of {self.seeds}{failed}"


class SeedScores(NamedTuple):
    """Scores of one suggested configuration with the random seeds trained so far.

    Args:
        scores: Scores of the trained seeds, at least one; higher is better.
        cost: Mean cost of a run in seconds.
    """

    scores: list[float]
    cost: float

    def score(self, seeds_score: str) -> float:
        """Combine a configuration's scores with all seeds into one, by ``sweep.seeds_score``."""
        return combine_scores(self.scores, seeds_score)


def combine_scores(scores: Sequence[float], seeds_score: str, sign: int = 1) -> float:
    """Combine the scores of several seeds into one.

    Args:
        scores: Score of each seed.
        seeds_score: Value of ``sweep.seeds_score``: mean, median or worst.
        sign: -1 if lower scores are better.
    """
    if seeds_score == WORST:
        return sign * min(sign * score for score in scores)
    return statistics.median(scores) if seeds_score == MEDIAN else statistics.fmean(scores)


def combine_curves(
    curves: Sequence[Sequence[Point]], seeds_score: str, sign: int = 1
) -> list[Point]:
    """Combine the learning curves of several seeds: one score, mean cost and mean steps per point.

    Points are matched from the end, because a curve starts only when its first episode has ended.

    Args:
        curves: Curve of each seed.
        seeds_score: Value of ``sweep.seeds_score``: mean, median or worst.
        sign: -1 if lower scores are better.
    """
    length = min(len(curve) for curve in curves)
    joined: list[Point] = []
    for points in zip(*(curve[len(curve) - length :] for curve in curves), strict=True):
        score = combine_scores([point.score for point in points], seeds_score, sign)
        cost, steps = (
            statistics.fmean(each) for each in zip(*(p[1:] for p in points), strict=True)
        )
        joined.append(Point(score, cost, steps))
    return joined


def seed_noise(suggestions: Sequence[SeedScores]) -> float:
    """Estimate how much scores vary between random seeds of the same configuration.

    Returns:
        The median over the suggestions of the standard deviation between seeds; 0 if no suggestion
        has two seeds.
    """
    deviations = [statistics.stdev(each.scores) for each in suggestions if len(each.scores) > 1]
    return statistics.median(deviations) if deviations else 0.0


def is_beaten(
    suggestion: SeedScores,
    rivals: Sequence[SeedScores],
    seeds_score: str,
    noise: float,
    target: float = math.inf,
) -> bool:
    """Return True if a rival configuration costs no more and scores better by more than the noise.

    Args:
        suggestion: Scores of the suggestion.
        rivals: Scores of other suggestions.
        seeds_score: Value of ``sweep.seeds_score``: mean, median or worst.
        noise: Standard deviation between seeds.
        target: Sufficient score: a rival that reaches it needs no better one.
    """
    needed = min(suggestion.score(seeds_score) + noise, target)
    return any(
        rival.cost <= suggestion.cost and rival.score(seeds_score) >= needed for rival in rivals
    )
