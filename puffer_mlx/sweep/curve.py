"""Learning curves of a sweep's runs, as points of score and cost, and scores over several seeds.

Points are read from the JSON lines that every run writes (``tracking/json_lines.py``), never from
its printed output.

With one seed, the best of many runs is partly the luckiest. Training every suggestion with all
seeds would waste most of the time on bad suggestions. So each suggestion starts with one seed. It
gets the others unless it is beaten: a run that costs no more scores better by more than the noise
between seeds. A rival with all of its seeds ends the suggestion. A rival that lacks seeds may be
lucky, so it only goes first.
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

STEPS, COST = "agent_steps", "uptime"


class Point(NamedTuple):
    """A point of a run's curve.

    Args:
        score: Value of ``[sweep] metric`` as recorded.
        cost: Training time in seconds.
        steps: Environment steps of all agents.
    """

    score: float
    cost: float
    steps: float


class Outcome(NamedTuple):
    """The result of a run.

    Args:
        points: Points of the curve, at most ``[sweep] downsample``. The last one is the run's
            result. Empty if the run failed.
        fault: Reason of a failure; else empty.
        stopped: Reason of an early stop; else empty.
    """

    points: list[Point]
    fault: str = ""
    stopped: str = ""


class LogReader:
    """Read a run's log while the run writes it.

    If the file is removed, the run starts a new one, and reading continues there.

    Args:
        folder: Folder that will contain the log, the only ``.jsonl`` file in its tree.
        metric: Name of the score in a record.

    Attributes:
        bad: Reason why the log is no result, for example a score that isn't finite; else "".
        skipped: Note on the first line that isn't a record; else "".
        changed: Modification time of the file in nanoseconds, of a record or a heartbeat
            (``JsonLines.touch``); 0 without a file.
    """

    def __init__(self, folder: Path, metric: str) -> None:
        self.bad = ""
        self.skipped = ""
        self.changed = 0
        self._folder = folder
        self._metric = metric
        self._closed = False
        self._file: BinaryIO | None = None  # stays open so that its inode isn't reused
        self._last = (0.0, 0.0)  # cost and steps of the last epoch
        self._points: list[Point] = []
        self._evaluated = math.nan

    def new_points(self) -> list[Point]:
        """Return the points of new epochs that have a score."""
        points: list[Point] = []
        while file := self._file or self._open():
            points += self._read_on(file)
            if os.fstat(file.fileno()).st_nlink:
                break
            self._file = file.close()  # the file was removed
        return points

    def close(self) -> None:
        """Close the file and stop reading."""
        self._closed = True
        if self._file:
            self._file = self._file.close()

    def _open(self) -> BinaryIO | None:
        """Open the log and return it, or None without a log."""
        with suppress(OSError):
            if self._closed:
                return None
            path = next(iter(self._folder.rglob("*.jsonl")), None)
            self._file = open(path, "rb") if path else None  # noqa: SIM115
        return self._file

    def _read_on(self, file: BinaryIO) -> list[Point]:
        """Return the points of the unread records."""
        self.changed = os.fstat(file.fileno()).st_mtime_ns
        points: list[Point] = []
        for line in complete_lines(file):
            try:
                point = self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                text = line.decode(errors="replace").rstrip("\n")
                self.skipped = self.skipped or f"a line of its log isn't a record: {text!r:.80}"
            else:
                points += [point] if point else []
        return points

    def _take(self, record: dict[str, float | None]) -> Point | None:
        numbers = {name: math.nan if x is None else x for name, x in record.items()}
        if "epoch" not in numbers:  # the evaluation after training
            self._evaluated = numbers.get(self._metric, math.nan)
            return None
        if not math.isfinite(numbers.get(self._metric, 0.0)) and not self.bad:
            self.bad = f"{self._metric} is not a finite number after {numbers[STEPS]:,.0f} steps"
        self._last = numbers[COST], numbers[STEPS]
        if self._metric not in numbers:
            return None
        self._points.append(Point(numbers[self._metric], *self._last))
        return self._points[-1]

    def points(self, most: int) -> list[Point]:
        """Return the curve: means over ``most - 1`` parts of the run, and the result.

        The parts follow PufferLib's rule (``means``). The result has the cost and steps at the end
        of training. Its score is that of the evaluation after training, or the last recorded one
        without an evaluation. Empty without any score.
        """
        if not self._points:
            return []
        cost, steps = self._last
        parts = means(self._points, steps, most - 1) if most > 1 else []
        score = self._points[-1].score if math.isnan(self._evaluated) else self._evaluated
        return [*(part for part in parts if part.steps < steps), Point(score, cost, steps)]


def means(points: Sequence[Point], steps: float, parts: int) -> list[Point]:
    """Return the mean point of each part of a run, by PufferLib's rule.

    A part ends with the first point whose steps reach the next multiple of ``steps / parts``; one
    point ends at most one part. Points after the last end are left out.

    Args:
        points: Points in the order of their steps.
        steps: Environment steps of the entire run.
        parts: Largest number of parts.
    """
    averaged: list[Point] = []
    sums = [0.0, 0.0, 0.0]
    count = 0
    for point in points:
        sums = [total + value for total, value in zip(sums, point, strict=True)]
        count += 1
        if point.steps * parts >= (len(averaged) + 1) * steps:
            averaged.append(Point(*(total / count for total in sums)))
            sums = [0.0, 0.0, 0.0]
            count = 0
    return averaged


# ---- several seeds -------------------------------------------------------------------------------


class HeldOut(NamedTuple):
    """Results of a run's held-out seeds.

    Args:
        scores: Recorded scores of the seeds that finished.
        failed: Number of seeds that failed.
    """

    scores: list[float]
    failed: int = 0

    @property
    def seeds(self) -> int:
        """Number of held-out seeds."""
        return len(self.scores) + self.failed

    def words(self, sign: int = 1) -> str:
        """Return the median, the worst score and the number of seeds as text.

        Args:
            sign: -1 if lower scores are better.
        """
        failed = f", {self.failed} failed" * bool(self.failed)
        if not self.scores:
            return f"of {self.seeds}{failed}"
        worst = as_one(self.scores, WORST, sign)
        end = "lowest" if sign > 0 else "highest"
        median = statistics.median(self.scores)
        return f"median {median:.4g}, {end} {worst:.4g} of {self.seeds}{failed}"


class SeedScores(NamedTuple):
    """Known results of a suggestion.

    Args:
        scores: Scores of the trained seeds, at least one; higher is better.
        cost: Mean cost of a run in seconds.
    """

    scores: list[float]
    cost: float

    def score(self, how: str) -> float:
        """Return the scores as one, by ``sweep.seeds_score``."""
        return as_one(self.scores, how)


def as_one(scores: Sequence[float], how: str, sign: int = 1) -> float:
    """Return one score for several seeds.

    Args:
        scores: Score of each seed.
        how: Value of ``sweep.seeds_score``: mean, median or worst.
        sign: -1 if lower scores are better.
    """
    if how == WORST:
        return sign * min(sign * score for score in scores)
    return statistics.median(scores) if how == MEDIAN else statistics.fmean(scores)


def combined(curves: Sequence[Sequence[Point]], how: str, sign: int = 1) -> list[Point]:
    """Combine the curves of several seeds: one score, mean cost and mean steps per point.

    Points are matched from the end, since a curve starts where its first episode ended.
    """
    length = min(len(curve) for curve in curves)
    joined: list[Point] = []
    for points in zip(*(curve[len(curve) - length :] for curve in curves), strict=True):
        score = as_one([point.score for point in points], how, sign)
        cost, steps = (
            statistics.fmean(each) for each in zip(*(p[1:] for p in points), strict=True)
        )
        joined.append(Point(score, cost, steps))
    return joined


def noise(known: Sequence[SeedScores]) -> float:
    """Return the noise between seeds: the median standard deviation of suggestions, or 0."""
    deviations = [statistics.stdev(each.scores) for each in known if len(each.scores) > 1]
    return statistics.median(deviations) if deviations else 0.0


def is_beaten(
    one: SeedScores, rivals: Sequence[SeedScores], how: str, noise: float, enough: float = math.inf
) -> bool:
    """Return True if a suggestion isn't worth another seed.

    Args:
        one: Results of the suggestion.
        rivals: Results of other suggestions.
        how: Value of ``sweep.seeds_score``.
        noise: Standard deviation between seeds.
        enough: Score that is good enough; higher ones count the same.
    """
    needed = min(one.score(how) + noise, enough)
    return any(each.cost <= one.cost and each.score(how) >= needed for each in rivals)
