"""Record a timeline of a run for https://ui.perfetto.dev and chrome://tracing.

A trace has rows for Python threads, streams and environments. Each lane of the profiler fills one
row; ``span`` adds to any row, for example a graph from ``async_eval`` until it is evaluated. The
format is Chrome's "Trace Event Format": complete events (``ph`` is X) in microseconds.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from puffer_mlx.errors import UserError
from puffer_mlx.system.files import check_writable, publish

LIMIT = 200_000  # spans; about 60 MB of memory and 25 MB of JSON
ROLLOUT = "rollout (Python)"
TRAIN = "train (Python)"
ACTING = "acting stream"
LEARNING = "learning stream"
ENVIRONMENTS = "environments"
ROWS = (ROLLOUT, TRAIN, ACTING, LEARNING, ENVIRONMENTS)  # from the top; streams have numbers


class Trace:
    """Record spans for some epochs, then write the file.

    Any thread may add spans; one thread starts and ends the recording.

    Args:
        path: File to write.
        first: First epoch to record, counted from 0 (epoch 0 compiles).
        epochs: Number of epochs to record.
        limit: Maximum number of spans. Later ones are left out, which the file and standard error
            report.
        clock: Returns seconds; spans use the same clock.

    Attributes:
        recording: True while spans are recorded.

    Raises:
        UserError: ``path`` isn't writable.
    """

    def __init__(
        self,
        path: Path | str,
        first: int,
        epochs: int,
        limit: int = LIMIT,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.path = check_writable(path)
        self.first = first
        self.epochs = epochs
        self.limit = limit
        self.recording = False
        self._done = False
        self._clock = clock
        self._origin = 0.0
        self._last = 0
        self._marks: list[tuple[int, float]] = []  # (epoch, start time)
        self._spans: list[tuple[str, str, float, float, dict[str, Any]]] = []
        self._numbers = itertools.count()  # next() is atomic, so no lock is needed

    def begin(self, epoch: int) -> None:
        """Note that an epoch begins; starts the recording, or ends it and writes the file."""
        if not self._done and not self.recording and epoch >= self.first:
            self.recording = True
            self._origin = self._clock()
            self._last = epoch + self.epochs - 1
        if self.recording and epoch > self._last:
            self.close()
        if self.recording:
            self._marks.append((epoch, self._clock()))

    def span(self, row: str, name: str, begin: float, end: float, **args: Any) -> None:
        """Add a span to a row.

        Args:
            row: One of ``ROWS``, followed by a number if it has several; other rows go below.
            name: Label of the span.
            begin: Clock time in seconds; cut off at the start of the recording.
            end: Clock time in seconds, not before ``begin``.
            args: Numbers and texts to show when the span is selected.
        """
        if self.recording and next(self._numbers) < self.limit:
            self._spans.append((row, name, begin, end, args))

    def close(self) -> None:
        """End the recording and write the file, even if the run ended early.

        If the file can't be written (a full disk), a line on standard error says so and the run
        continues.
        """
        if self._done:
            return
        self.recording = False
        self._done = True
        lost = max(0, next(self._numbers) - self.limit)
        if lost:
            print(f"puffer_mlx: {self.path}: {self._lost(lost)}", file=sys.stderr)
        try:
            with publish(self.path, user_named=True) as path:
                path.write_text(json.dumps(self._document(lost)) + "\n")
        except UserError as error:
            print(f"puffer_mlx: no trace: {error.message}", file=sys.stderr)
        self._spans = []

    def _document(self, lost: int) -> dict[str, Any]:
        spans = sorted(list(self._spans), key=lambda span: span[2])
        rows = sorted({span[0] for span in spans}, key=_order)
        threads = {row: number for number, row in enumerate(rows, 1)}
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "puffer_mlx"}}
        ]
        for row, tid in threads.items():
            for name, args in (("name", {"name": row}), ("sort_index", {"sort_index": tid})):
                events.append(
                    {"ph": "M", "pid": 1, "tid": tid, "name": f"thread_{name}", "args": args}
                )
        for epoch, begin in self._marks:
            mark = {"ph": "i", "s": "p", "pid": 1, "tid": 0, "name": f"epoch {epoch}"}
            events.append({**mark, "ts": self._microseconds(begin)})
        for row, name, begin, end, args in spans:
            ts = self._microseconds(begin)
            duration = round(max(0.0, self._microseconds(end) - ts), 3)
            event = {"ph": "X", "pid": 1, "tid": threads[row], "name": name}
            events.append({**event, "ts": ts, "dur": duration, "args": args})
        summary: dict[str, Any] = {
            "epochs": len(self._marks),
            "spans": len(spans),
            "spans left out": lost,
        }
        if lost:
            summary["note"] = self._lost(lost)
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": summary}

    def _microseconds(self, when: float) -> float:
        return round(1e6 * max(0.0, when - self._origin), 3)

    def _lost(self, lost: int) -> str:
        return (
            f"the trace holds the first {self.limit:,} spans; {lost:,} later ones were left out:"
            " trace fewer epochs"
        )


def _order(row: str) -> tuple[int, str]:
    """Return a row's sort key: the order of ``ROWS``, then the stream's number."""
    index = next((i for i, known in enumerate(ROWS) if row.startswith(known)), len(ROWS))
    return index, row
