"""What a run tells of itself while it goes on, and what came of it: points of score and cost.

Both are read from the lines of JSON that every run writes (``tracking/json_lines.py``), never from
what it prints.
"""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.tracking.run_log import Record, means

STEPS, COST = "agent_steps", "uptime"


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
    """A run's log, read as it grows; only what makes a curve is kept.

    Args:
        folder: where the run will write it: the one ``.jsonl`` anywhere below.
        metric: the score's name in a record.

    Attributes:
        bad: where the score wasn't a finite number; empty if it always was.
        length: bytes read.
        changed: when something last happened to the file, by its own time in nanoseconds: a record,
            or a sign of life (``JsonLines.touch``). 0: there is none.
    """

    def __init__(self, folder: Path, metric: str) -> None:
        self.bad, self.length, self.changed = "", 0, 0
        self._folder, self._metric = folder, metric
        self._path: Path | None = None
        self._last: Record = {}
        self._with_score: list[Record] = []
        self._evaluated = math.nan

    def news(self) -> list[Point]:
        """Points of the epochs that were recorded since the last call and have a score."""
        if self._path is None:
            self._path = next(iter(self._folder.rglob("*.jsonl")), None)
        if self._path is None:
            return []
        with open(self._path, "rb") as file:
            self.changed = os.fstat(file.fileno()).st_mtime_ns
            file.seek(self.length)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return []
        self.length += len(whole) + 1
        return [point for line in whole.splitlines() if (point := self._take(json.loads(line)))]

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


def fault_of(points: Iterable[Point], metric: str) -> str:
    """Why points are no result; empty if they are one."""
    listed = list(points)
    if not listed:
        return f"no record has {metric}: did no episode end, or does [sweep] metric name another?"
    if not all(math.isfinite(number) for point in listed for number in point):
        return f"{metric} is not a finite number"
    return ""
