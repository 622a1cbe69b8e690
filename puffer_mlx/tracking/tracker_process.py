"""The process of one tracker: ``python -m puffer_mlx.tracking.tracker_process NAME TRAINER``.

It reads lines of JSON from standard input, a file that grows until the process TRAINER has ended,
and executes them in order:
``{"start": TrackedRun, "keep": path}``, ``{"step": int, "metrics": {}}``,
``{"finish": RunResult}``. Without the last, the trainer was killed. Beside metrics there may be a
``"video": path``. It answers on standard output:

| line | |
| --- | --- |
| ``{"started": where}`` | once |
| ``{"no_videos": why}`` | the tracker failed to take one, and is given no more |
| ``{"fault": what}`` | the tracker was dropped |
| ``{"finished": true}`` | the end |

A file beside the log, published by rename, stores that the tracker has the run: where to find it,
and at the end the last step that it has, also if the trainer was killed. Without a step the process
was killed, too.

The output of a tracker is discarded. The process isolates the trainer from a tracker's threads,
signals, locks and memory, and can be killed if it hangs.
"""

import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from puffer_mlx.errors import UserError
from puffer_mlx.system.files import publish
from puffer_mlx.system.json_text import is_finite
from puffer_mlx.tracking.trackers import RunResult, ShowsVideos, TrackedRun, Tracker, find

FINISH_TIMEOUT = 60.0  # seconds that a tracker may take to finish
POLL_INTERVAL = 0.05  # seconds


def main() -> None:
    """Run the process; exits with os._exit to skip exit handlers of the tracker."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    kind = find(sys.argv[1])
    trainer = int(sys.argv[2])
    lines = tail(sys.stdin.buffer, lambda: os.getppid() != trainer)
    write = functools.partial(os.write, answers)
    serve(kind.make(), lines, write, lambda: _end_in(FINISH_TIMEOUT), kind.takes_again)
    os._exit(0)


def complete_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield a file's complete lines. The next call continues after them."""
    while (line := file.readline()).endswith(b"\n"):
        yield line
    file.seek(-len(line), os.SEEK_CUR)


def tail(file: IO[bytes], ends: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the lines of a growing file until ``ends`` returns True."""
    while not ends():
        yield from complete_lines(file)
        time.sleep(POLL_INTERVAL)
    yield from complete_lines(file)


def serve(
    tracker: Tracker,
    lines: Iterable[str | bytes],
    write: Callable[[bytes], object],
    finishing: Callable[[], object] = lambda: None,
    takes_again: bool = True,
) -> None:
    """Execute lines up to the first fault; ``finishing`` is called before the tracker finishes."""
    known: dict[str, Any] = {}
    kept = Path()
    last = -1

    def answer(**what: Any) -> None:
        with contextlib.suppress(OSError):  # the disk is full
            write(json.dumps(what).encode() + b"\n")

    result = RunResult("killed", {})
    shows = isinstance(tracker, ShowsVideos)
    try:
        for line in lines:
            order = json.loads(line)
            if "start" in order:
                run = TrackedRun(**order["start"])
                kept = Path(order["keep"])
                known = {"where": tracker.start(run), "step": run.known_to}
                last = -1 if takes_again or run.known_to is None else run.known_to
                _keep(kept, {"where": known["where"]})
                answer(started=known["where"])
            elif "finish" not in order:
                if order["step"] > last:
                    tracker.log(order["step"], _finite(order["metrics"]))
                    if shows and "video" in order and (fault := _show(tracker, order)):
                        shows = False
                        answer(no_videos=fault)
                known["step"] = max(order["step"], known["step"] or 0)
            else:
                result = RunResult(**order["finish"])
                break
        finishing()
        tracker.finish(result._replace(scores=_finite(result.scores)))
    except BaseException as error:  # a tracker may exit, too
        end = {"fault": _words(error)}
    else:
        end = {"finished": True}
    if known:
        _keep(kept, known)
    answer(**end)


def _show(tracker: Any, order: dict[str, Any]) -> str:
    """Pass on a video. Returns why that failed, or ""."""
    try:
        tracker.show(order["step"], order["video"])
    except Exception as error:
        return _words(error)
    return ""


def last_logged_step(kept: Path, logged: int | None) -> int | None:
    """Return the last step that a tracker has, or None if it doesn't have the run.

    Args:
        kept: File that the tracker's process wrote.
        logged: Last step in the run's log, used if the file has no step.
    """
    try:
        step = json.loads(kept.read_text(encoding="utf-8")).get("step", logged)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return int(step) if is_finite(step) else None


def _keep(path: Path, known: dict[str, Any]) -> None:
    with contextlib.suppress(UserError), publish(path) as temporary:  # then epochs come twice
        temporary.write_text(json.dumps(known) + "\n", encoding="utf-8")


def _finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics that are finite."""
    return {name: value for name, value in metrics.items() if value is not None}


def _words(error: BaseException) -> str:
    """Return an error as one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def _end_in(seconds: float) -> None:
    """End this process after the given seconds, even if it hangs."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    main()
