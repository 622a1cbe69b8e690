"""The process of one tracker: ``python -m puffer_mlx.tracking.tracker_process NAME TRAINER``.

It reads messages, each a line of JSON, from standard input: a file that grows until the process
TRAINER has ended. It handles them in order:

| message | |
| --- | --- |
| ``{"start": TrackedRun, "state_file": path}`` | first |
| ``{"step": int, "metrics": {}}`` | an epoch's record, perhaps with ``"video": path`` |
| ``{"finish": RunResult}`` | last; missing if the trainer was killed |

It answers with lines of JSON on standard output:

| answer | |
| --- | --- |
| ``{"started": text}`` | where the user finds the run |
| ``{"no_videos": reason}`` | the tracker failed to show a video and gets no more |
| ``{"error": reason}`` | the tracker failed and is dropped; the process ends |
| ``{"finished": true}`` | the process ends |

The state file, next to the log, has where the user finds the run (``where``) and, once the process
ends, the last step that the tracker has (``step``). If ``step`` is missing, this process was
killed.

The tracker's output is discarded. The process protects the trainer from a tracker's threads,
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
from puffer_mlx.tracking.trackers import RunResult, ShowsVideos, TrackedRun, Tracker, find_tracker

FINISH_TIMEOUT = 60.0  # seconds that a tracker may take to finish
POLL_INTERVAL = 0.05  # seconds between two checks for new lines


def main() -> None:
    """Run a tracker's process. Ends with ``os._exit`` to skip the tracker's exit handlers."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    kind = find_tracker(sys.argv[1])
    trainer = int(sys.argv[2])
    lines = follow_lines(sys.stdin.buffer, lambda: os.getppid() != trainer)
    write = functools.partial(os.write, answers)
    serve_tracker(kind.make(), lines, write, lambda: _end_in(FINISH_TIMEOUT), kind.accepts_repeats)
    os._exit(0)


def complete_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the complete lines of a growing file. The next call continues after them."""
    while (line := file.readline()).endswith(b"\n"):
        yield line
    file.seek(-len(line), os.SEEK_CUR)


def follow_lines(file: IO[bytes], ends: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the lines of a growing file until ``ends`` returns True."""
    while not ends():
        yield from complete_lines(file)
        time.sleep(POLL_INTERVAL)
    yield from complete_lines(file)


def serve_tracker(
    tracker: Tracker,
    lines: Iterable[str | bytes],
    write: Callable[[bytes], object],
    finishing: Callable[[], object] = lambda: None,
    accepts_repeats: bool = True,
) -> None:
    """Handle the messages to a tracker up to the last one or the first error.

    Args:
        tracker: The tracker.
        lines: Messages as lines of JSON: see the module.
        write: Writes an answer, a line of JSON.
        finishing: Called before the tracker finishes, to start a timeout.
        accepts_repeats: False skips records of steps that the tracker already has.
    """
    state: dict[str, Any] = {}
    state_file = Path()
    last = -1

    def answer(**fields: Any) -> None:
        with contextlib.suppress(OSError):  # the disk is full
            write(json.dumps(fields).encode() + b"\n")

    result = RunResult("killed", {})
    shows = isinstance(tracker, ShowsVideos)
    try:
        for line in lines:
            message = json.loads(line)
            if "start" in message:
                run = TrackedRun(**message["start"])
                state_file = Path(message["state_file"])
                state = {"where": tracker.start(run), "step": run.last_logged}
                last = -1 if accepts_repeats or run.last_logged is None else run.last_logged
                _write_state(state_file, {"where": state["where"]})
                answer(started=state["where"])
            elif "finish" not in message:
                if message["step"] > last:
                    tracker.log(message["step"], _finite(message["metrics"]))
                    if shows and "video" in message and (reason := _show(tracker, message)):
                        shows = False
                        answer(no_videos=reason)
                state["step"] = max(message["step"], state["step"] or 0)
            else:
                result = RunResult(**message["finish"])
                break
        finishing()
        tracker.finish(result._replace(scores=_finite(result.scores)))
    except BaseException as error:  # a tracker may even raise SystemExit
        end = {"error": _error_text(error)}
    else:
        end = {"finished": True}
    if state:
        _write_state(state_file, state)
    answer(**end)


def _show(tracker: Any, message: dict[str, Any]) -> str:
    """Let a tracker show a video. Returns the reason if it fails, else ""."""
    try:
        tracker.show(message["step"], message["video"])
    except Exception as error:
        return _error_text(error)
    return ""


def last_logged_step(state_file: Path, logged: int | None) -> int | None:
    """Return the environment steps of the last record that a tracker has of a run.

    Args:
        state_file: File that the tracker's process wrote (see the module).
        logged: Last step in the run's log, used if the file has no step.

    Returns:
        The steps, or None for a run that the tracker doesn't have.
    """
    try:
        step = json.loads(state_file.read_text(encoding="utf-8")).get("step", logged)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return int(step) if is_finite(step) else None


def _write_state(path: Path, state: dict[str, Any]) -> None:
    # If this fails, a resumed run logs some epochs twice, which is better than no tracker.
    with contextlib.suppress(UserError), publish(path) as temporary:
        temporary.write_text(json.dumps(state) + "\n", encoding="utf-8")


def _finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return only the finite metrics; others are None in JSON."""
    return {name: value for name, value in metrics.items() if value is not None}


def _error_text(error: BaseException) -> str:
    """Return an error's type and message as one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def _end_in(seconds: float) -> None:
    """Start a timer that ends this process after some seconds, even if it hangs."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    main()
