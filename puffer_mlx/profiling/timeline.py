"""Record a timeline of a run for https://ui.perfetto.dev and chrome://tracing.

A timeline has rows for Python threads, MLX streams and environments. Each ``PhaseTimer`` fills one
row. ``span`` adds a time span to any row, for example the time in which a stream computed. The file
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

MAX_SPANS = 200_000  # about 60 MB of memory and 25 MB of JSON
ROLLOUT = "rollout (Python)"
TRAIN = "train (Python)"
ACTING = "acting stream"
LEARNING = "learning stream"
ENVIRONMENTS = "environments"
# Rows from top to bottom. A row's name may end with a number: "acting stream 1".
TIMELINE_ROWS = (ROLLOUT, TRAIN, ACTING, LEARNING, ENVIRONMENTS)


class Timeline:
    """Record a timeline of some epochs, then write it to a file for Perfetto.

    Any thread may add spans; one thread starts and ends the recording.

    Args:
        path: File to write.
        first: First epoch to record, counted from 0 (epoch 0 compiles).
        epochs: Number of epochs to record.
        limit: Maximum number of spans. Further spans are dropped, with a note in the file and on
            standard error.
        clock: Function that returns the time in seconds, the same clock as for spans.

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
        limit: int = MAX_SPANS,
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
        self._last_epoch = 0
        self._marks: list[tuple[int, float]] = []  # (epoch, start time)
        self._spans: list[tuple[str, str, float, float, dict[str, Any]]] = []
        self._span_counter = itertools.count()  # next() is atomic, so no lock is needed

    def begin_epoch(self, epoch: int) -> None:
        """Report to the timeline that an epoch begins.

        Starts the recording at its first epoch. After its last one, ends it and writes the file.
        """
        if not self._done and not self.recording and epoch >= self.first:
            self.recording = True
            self._origin = self._clock()
            self._last_epoch = epoch + self.epochs - 1
        if self.recording and epoch > self._last_epoch:
            self.close()
        if self.recording:
            self._marks.append((epoch, self._clock()))

    def span(self, row: str, name: str, begin: float, end: float, **args: Any) -> None:
        """Add a time span to a row of the timeline, if it records.

        Args:
            row: Name of the row. ``TIMELINE_ROWS`` come first, then other rows by name.
            name: Label of the span.
            begin: Start in seconds of the clock; cut off at the start of the recording.
            end: End in seconds of the clock, at least ``begin``.
            args: Numbers and texts to show when the span is selected.
        """
        if self.recording and next(self._span_counter) < self.limit:
            self._spans.append((row, name, begin, end, args))

    def close(self) -> None:
        """End the recording of the timeline and write its file, even if the run ended early.

        If the file can't be written (a full disk), a line is printed on standard error and the run
        continues.
        """
        if self._done:
            return
        self.recording = False
        self._done = True
        added = next(self._span_counter)  # the next number is the number of spans added so far
        lost = max(0, added - self.limit)
        if lost:
            print(f"puffer_mlx: {self.path}: {self._lost_note(lost)}", file=sys.stderr)
        try:
            with publish(self.path, user_named=True) as path:
                path.write_text(json.dumps(self._document(lost)) + "\n")
        except UserError as error:
            print(f"puffer_mlx: timeline not written: {error.message}", file=sys.stderr)
        self._spans = []

    def _document(self, lost: int) -> dict[str, Any]:
        """Return the content of the timeline's file: a dictionary in Chrome's trace event format.

        ``ph`` is the type of an event: M names a row, i marks an epoch's start, X is a span.

        Args:
            lost: Number of dropped spans.
        """
        spans = sorted(list(self._spans), key=lambda span: span[2])  # by begin
        rows = sorted({span[0] for span in spans}, key=_row_order)
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
            summary["note"] = self._lost_note(lost)
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": summary}

    def _microseconds(self, when: float) -> float:
        return round(1e6 * max(0.0, when - self._origin), 3)

    def _lost_note(self, lost: int) -> str:
        return (
            f"the timeline contains the first {self.limit:,} spans; {lost:,} later ones were"
            " dropped: record fewer epochs"
        )


def _row_order(row: str) -> tuple[int, str]:
    """Return the sort key of a timeline row: its index in ``TIMELINE_ROWS``, then its name."""
    for index, name in enumerate(TIMELINE_ROWS):
        if row.startswith(name):
            return index, row
    return len(TIMELINE_ROWS), row
