"""Record a timeline of a run for https://ui.perfetto.dev and chrome://tracing.

A timeline has rows for Python threads, MLX streams and environments. Each ``PhaseTimer`` fills one
row; ``span`` adds to any row, for example the time from ``async_eval`` to the end of the graph. The
file format is Chrome's "Trace Event Format": complete events (``ph`` is X) in microseconds.
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
TRACE_ROWS = (ROLLOUT, TRAIN, ACTING, LEARNING, ENVIRONMENTS)  # from the top; streams have numbers


class Trace:
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
        self._last = 0
        self._marks: list[tuple[int, float]] = []  # (epoch, start time)
        self._spans: list[tuple[str, str, float, float, dict[str, Any]]] = []
        self._span_counter = itertools.count()  # next() is atomic, so no lock is needed

    def begin(self, epoch: int) -> None:
        """Report that an epoch begins. Starts or ends the recording; its end writes the file."""
        if not self._done and not self.recording and epoch >= self.first:
            self.recording = True
            self._origin = self._clock()
            self._last = epoch + self.epochs - 1
        if self.recording and epoch > self._last:
            self.close()
        if self.recording:
            self._marks.append((epoch, self._clock()))

    def span(self, row: str, name: str, begin: float, end: float, **args: Any) -> None:
        """Add a time span to a row of the timeline.

        Args:
            row: One of ``TRACE_ROWS``, with a number if there are several; other rows go below.
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
        lost = max(0, next(self._span_counter) - self.limit)
        if lost:
            print(f"puffer_mlx: {self.path}: {self._lost_note(lost)}", file=sys.stderr)
        try:
            with publish(self.path, user_named=True) as path:
                path.write_text(json.dumps(self._document(lost)) + "\n")
        except UserError as error:
            print(f"puffer_mlx: timeline not written: {error.message}", file=sys.stderr)
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
            summary["note"] = self._lost_note(lost)
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": summary}

    def _microseconds(self, when: float) -> float:
        return round(1e6 * max(0.0, when - self._origin), 3)

    def _lost_note(self, lost: int) -> str:
        return (
            f"the timeline contains the first {self.limit:,} spans; {lost:,} later ones were"
            " dropped: record fewer epochs"
        )


def _order(row: str) -> tuple[int, str]:
    """Return the sort key of a timeline row: its index in ``TRACE_ROWS``, then its name."""
    index = next((i for i, name in enumerate(TRACE_ROWS) if row.startswith(name)), len(TRACE_ROWS))
    return index, row
