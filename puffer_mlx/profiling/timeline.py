"""What ran when, as a file that https://ui.perfetto.dev and chrome://tracing open.

A trace has rows: Python threads, streams, environments. The profiler's lanes fill their own rows;
``span`` takes what is known of the others, such as a graph from ``async_eval`` until evaluated.
The format is Chrome's "Trace Event Format": complete events (``ph`` is X), times in microseconds.
"""

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from puffer_mlx.errors import UserError
from puffer_mlx.system.files import publish, shown

LIMIT = 200_000  # spans; about 60 MB of memory and 25 MB of JSON
ROLLOUT, TRAIN = "rollout (Python)", "train (Python)"
ACTING, LEARNING, ENVIRONMENTS = "acting stream", "learning stream", "environments"
ROWS = (ROLLOUT, TRAIN, ACTING, LEARNING, ENVIRONMENTS)  # top down; streams have numbers


class Trace:
    """Records spans for some epochs, then writes the file.

    Any thread may add spans; recording begins and ends in one.

    Args:
        path: where the file is to be.
        first: record from this epoch on, counted from 0; the first epoch compiles.
        epochs: as many.
        limit: spans at most. What comes later is left out; the file and standard error say so.
        clock: seconds; spans are given in its time.

    Attributes:
        recording: whether spans are taken now.

    Raises:
        UserError: nothing can be written to ``path``.
    """

    def __init__(
        self,
        path: Path | str,
        first: int,
        epochs: int,
        limit: int = LIMIT,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.path = Path(path)
        refuse_unwritable(self.path)
        self.first, self.epochs, self.limit = first, epochs, limit
        self.recording, self._done = False, False
        self._clock = clock
        self._origin, self._last = 0.0, 0
        self._marks: list[tuple[int, float]] = []  # epochs and their beginnings
        self._spans: list[tuple[str, str, float, float, dict[str, Any]]] = []
        self._numbers = itertools.count()  # its next is atomic: counts without a lock

    def begin(self, epoch: int) -> None:
        """An epoch begins: start to record if it is time, or end and write the file."""
        if not self._done and not self.recording and epoch >= self.first:
            self.recording, self._origin = True, self._clock()
            self._last = epoch + self.epochs - 1
        if self.recording and epoch > self._last:
            self.close()
        if self.recording:
            self._marks.append((epoch, self._clock()))

    def span(self, row: str, name: str, begin: float, end: float, **args: Any) -> None:
        """Add what took from ``begin`` to ``end`` (seconds of the clock) to a row.

        Args:
            row: one of ``ROWS``, followed by a number where there are several; others go below.
            name: what is written on the span.
            begin: what was before the recording began is cut off.
            end: not before ``begin``.
            args: shown when the span is selected; numbers and texts.
        """
        if self.recording and next(self._numbers) < self.limit:
            self._spans.append((row, name, begin, end, args))

    def close(self) -> None:
        """End the recording and write the file; of a run that was too short, what there is.

        A file that can't be written now (a full disk) is a line on standard error: what was
        trained is worth more.
        """
        if self._done:
            return
        self.recording, self._done = False, True
        lost = max(0, next(self._numbers) - self.limit)
        if lost:
            print(f"puffer_mlx: {self.path}: {self._lost(lost)}", file=sys.stderr)
        try:
            with publish(self.path, named=True) as path:
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
        facts: dict[str, Any] = {
            "epochs": len(self._marks),
            "spans": len(spans),
            "spans left out": lost,
        }
        if lost:
            facts["note"] = self._lost(lost)
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}

    def _microseconds(self, when: float) -> float:
        return round(1e6 * max(0.0, when - self._origin), 3)

    def _lost(self, lost: int) -> str:
        return (
            f"the trace holds the first {self.limit:,} spans; {lost:,} later ones were left out:"
            " trace fewer epochs"
        )


def _order(row: str) -> tuple[int, str]:
    """Where a row stands: as in ``ROWS``, streams by their number (of one digit, in practice)."""
    place = next((i for i, known in enumerate(ROWS) if row.startswith(known)), len(ROWS))
    return place, row


def refuse_unwritable(path: Path) -> None:
    """Raise a UserError if no file can be put there; nothing is left behind by asking."""
    whole = Path(os.path.abspath(path))  # without .., which may lead through what isn't there yet
    try:
        if path.is_dir():
            raise UserError(
                f"{shown(path)} is a folder, expected the name of a file",
                shown(path / "trace.json"),
            )
        folder = next(parent for parent in whole.parents if parent.exists())
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"can't write {shown(path)}: {error.strerror or error}",
            "name a file in a folder that you can write to",
        ) from None
