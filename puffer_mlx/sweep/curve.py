"""What a run came to, points of score and cost, and what the runs of several seeds come to.

Points are read from the lines of JSON that every run writes (``tracking/json_lines.py``), never
from what it prints.

One seed finds lucky seeds: the best of many runs is partly the luckiest. All seeds of every
suggestion would cost as many times more, most of it for suggestions that nobody wants. So each has
one seed at first, and the others unless it is beaten: a run that costs no more is better by more
than seeds differ anyway, the noise seen. One with all of its seeds ends that; one that lacks some
may be lucky, so it only has its turn before.
"""

import json
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from puffer_mlx.sweep.settings import MEDIAN, WORST
from puffer_mlx.tracking.tracker_process import complete_lines

STEPS, COST = "agent_steps", "uptime"
Record = dict[str, float]


class Point(NamedTuple):
    """Where a run was.

    Args:
        score: by ``[sweep] metric``, as it was recorded.
        cost: seconds of training.
        steps: environment steps of all agents.
    """

    score: float
    cost: float
    steps: float


class Outcome(NamedTuple):
    """What came of a run.

    Args:
        points: of its curve, at most ``[sweep] downsample``; the last one is the run's result.
            Empty if it failed.
        fault: why it failed; empty if it didn't.
        stopped: why it was ended before its time; empty if it wasn't.
    """

    points: list[Point]
    fault: str = ""
    stopped: str = ""


class Log:
    """Reads a run's log as it grows; only what makes a curve is kept.

    If the file is removed, the run begins a new one, and so does this.

    Args:
        folder: where the run will write it: the one ``.jsonl`` anywhere below.
        metric: the score's name in a record.

    Attributes:
        bad: Why the log isn't a result, for example a score that isn't finite; else "".
        skipped: The first line that isn't a record, as a note; "" if there is none.
        changed: when something last happened to the file, by its own time in nanoseconds: a record,
            or a sign of life (``JsonLines.touch``). 0: there is none.
    """

    def __init__(self, folder: Path, metric: str) -> None:
        self.bad = ""
        self.skipped = ""
        self.changed = 0
        self._folder, self._metric = folder, metric
        self._closed = False
        self._file: BinaryIO | None = None  # stays open: its inode number isn't another file's
        self._last: Record = {}
        self._with_score: list[Record] = []
        self._evaluated = math.nan

    def news(self) -> list[Point]:
        """Return points of the epochs that were recorded since the last call and have a score."""
        points: list[Point] = []
        while file := self._file or self._open():
            points += self._read_on(file)
            if os.fstat(file.fileno()).st_nlink:
                break
            self._file = file.close()  # it was removed
        return points

    def close(self) -> None:
        """Close the file: nothing is read any more."""
        self._closed = True
        if self._file:
            self._file = self._file.close()

    def _open(self) -> BinaryIO | None:
        """Open and return the log; None if it isn't there."""
        with suppress(OSError):
            if self._closed:
                return None
            path = next(iter(self._folder.rglob("*.jsonl")), None)
            self._file = open(path, "rb") if path else None  # noqa: SIM115
        return self._file

    def _read_on(self, file: BinaryIO) -> list[Point]:
        """Return points of the records that follow those that were read."""
        self.changed = os.fstat(file.fileno()).st_mtime_ns
        points: list[Point] = []
        for line in complete_lines(file):
            try:
                point = self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                text = line.decode(errors="replace").rstrip("\n")
                self.skipped = self.skipped or f"a line of its log is no record: {text!r:.80}"
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
        self._last = {name: numbers[name] for name in (STEPS, COST)}
        if self._metric not in numbers:
            return None
        kept = {**self._last, self._metric: numbers[self._metric]}
        self._with_score.append(kept)
        return Point(kept[self._metric], kept[COST], kept[STEPS])

    def points(self, most: int) -> list[Point]:
        """The curve: means over ``most`` - 1 parts of the run, upstream's rule, and its result.

        The result's cost and steps are those at the end of training; its score is the evaluation's
        after training, of a run without one the last that was recorded. Empty without any score.
        """
        if not self._with_score:
            return []
        steps = self._last[STEPS]
        parts = means(iter(self._with_score), steps, most - 1) if most > 1 else []
        points = [Point(part[self._metric], part[COST], part[STEPS]) for part in parts]
        score = self._evaluated
        if math.isnan(score):
            score = self._with_score[-1][self._metric]
        last = Point(score, self._last[COST], steps)
        return [*(point for point in points if point.steps < steps), last]


def means(records: Iterator[Record], steps: float, parts: int) -> list[Record]:
    """Return the mean record of each part of a run, by PufferLib's rule.

    A part ends with the first record whose ``agent_steps`` reach the next multiple of
    ``steps / parts``; one record ends at most one part. Records after the last end are left out.

    Args:
        records: Records in the order of their ``agent_steps``.
        steps: Environment steps of the entire run.
        parts: Largest number of parts.

    Returns:
        One record per part: each number is the mean over the part's records that have it.
    """
    averaged: list[Record] = []
    sums: Record = {}
    counts: dict[str, int] = {}
    for record in records:
        for name, value in record.items():
            sums[name] = sums.get(name, 0) + value
            counts[name] = counts.get(name, 0) + 1
        if record["agent_steps"] * parts >= (len(averaged) + 1) * steps:
            averaged.append({name: total / counts[name] for name, total in sums.items()})
            sums = {}
            counts = {}
    return averaged


def fault_of(points: Iterable[Point], metric: str) -> str:
    """Why points are no result; empty if they are one."""
    listed = list(points)
    if not listed:
        return f"no record has {metric}: did no episode end, or does [sweep] metric name another?"
    if not all(math.isfinite(number) for point in listed for number in point):
        return f"{metric} is not a finite number"
    return ""


# ---- several seeds -------------------------------------------------------------------------------


class HeldOut(NamedTuple):
    """What held-out seeds came to.

    Args:
        scores: of those that finished, as they were recorded.
        failed: how many failed.
    """

    scores: list[float]
    failed: int = 0

    @property
    def seeds(self) -> int:
        """How many there were."""
        return len(self.scores) + self.failed

    def words(self, sign: int = 1) -> str:
        """The distribution: its median, its worst, and of how many.

        Args:
            sign: -1 if less is better.
        """
        failed = f", {self.failed} failed" * bool(self.failed)
        if not self.scores:
            return f"of {self.seeds}{failed}"
        worst, end = as_one(self.scores, WORST, sign), "lowest" if sign > 0 else "highest"
        median = statistics.median(self.scores)
        return f"median {median:.4g}, {end} {worst:.4g} of {self.seeds}{failed}"


class Judged(NamedTuple):
    """What is known of a suggestion.

    Args:
        scores: of its seeds so far, at least one; more is better.
        cost: of one run, seconds.
    """

    scores: list[float]
    cost: float

    def score(self, how: str) -> float:
        """The scores as one, by ``sweep.seeds_score``."""
        return as_one(self.scores, how)


def as_one(scores: Sequence[float], how: str, sign: int = 1) -> float:
    """The score of several seeds.

    Args:
        scores: of the seeds.
        how: ``sweep.seeds_score``.
        sign: -1 if less is better.
    """
    if how == WORST:
        return sign * min(sign * score for score in scores)
    return statistics.median(scores) if how == MEDIAN else statistics.fmean(scores)


def combined(curves: Sequence[Sequence[Point]], how: str, sign: int = 1) -> list[Point]:
    """One curve of several seeds' curves: scores as one, and mean costs and steps.

    Points are matched from the end: a curve has no point where no episode had ended yet.
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


def noise(known: Sequence[Judged]) -> float:
    """How much seeds differ: the median of suggestions' standard deviations; 0 if none has two."""
    deviations = [statistics.stdev(each.scores) for each in known if len(each.scores) > 1]
    return statistics.median(deviations) if deviations else 0.0


def is_beaten(
    one: Judged, rivals: Sequence[Judged], how: str, noise: float, enough: float = math.inf
) -> bool:
    """Whether a suggestion isn't worth another seed.

    Args:
        one: the suggestion.
        rivals: others.
        how: ``sweep.seeds_score``.
        noise: how much seeds differ.
        enough: a score above which more counts for nothing.
    """
    needed = min(one.score(how) + noise, enough)
    return any(each.cost <= one.cost and each.score(how) >= needed for each in rivals)
