"""The process of one tracker: ``python -m puffer_mlx.tracking.tracker_process NAME TRAINER_PID``.

It reads messages, each a line of JSON, from standard input: a file that grows until the trainer's
process has ended. It handles them in order:

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

The state file, next to the log, stores two values for a resumed run: ``where``, a text that says
where the user finds the run; and, written when the process ends, ``step``, the last step that the
tracker has. If ``step`` is missing, this process was killed.

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
    trainer_pid = int(sys.argv[2])
    lines = follow_lines(sys.stdin.buffer, lambda: os.getppid() != trainer_pid)
    write = functools.partial(os.write, answers)
    start_timeout = functools.partial(_exit_after, FINISH_TIMEOUT)
    serve_tracker(kind.make(), lines, write, start_timeout, kind.accepts_repeats)
    os._exit(0)


def complete_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the complete lines of a growing file. The next call continues after them."""
    while (line := file.readline()).endswith(b"\n"):
        yield line
    file.seek(-len(line), os.SEEK_CUR)


def follow_lines(file: IO[bytes], has_ended: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the lines of a growing file until ``has_ended`` returns True."""
    while not has_ended():
        yield from complete_lines(file)
        time.sleep(POLL_INTERVAL)
    yield from complete_lines(file)


def serve_tracker(
    tracker: Tracker,
    lines: Iterable[str | bytes],
    write: Callable[[bytes], object],
    start_timeout: Callable[[], object] = lambda: None,
    accepts_repeats: bool = True,
) -> None:
    """Pass messages to a tracker, and answer them, up to the last message or the first error.

    Args:
        tracker: The tracker.
        lines: Messages as lines of JSON (the module's docstring lists them).
        write: Writes an answer, a line of JSON.
        start_timeout: Called before the tracker finishes, to limit the time it may take.
        accepts_repeats: If False, records of steps that the tracker already has are skipped.
    """
    state: dict[str, Any] = {}
    state_file = Path()
    skip_until = -1  # records up to this step are skipped

    def answer(**fields: Any) -> None:
        with contextlib.suppress(OSError):  # the disk is full
            write(json.dumps(fields).encode() + b"\n")

    result = RunResult("killed", {})
    shows_videos = isinstance(tracker, ShowsVideos)
    try:
        for line in lines:
            message = json.loads(line)
            if "start" in message:
                run = TrackedRun(**message["start"])
                state_file = Path(message["state_file"])
                state = {"where": tracker.start(run), "step": run.last_tracked_step}
                if not accepts_repeats and run.last_tracked_step is not None:
                    skip_until = run.last_tracked_step
                _write_state(state_file, {"where": state["where"]})
                answer(started=state["where"])
            elif "finish" in message:
                result = RunResult(**message["finish"])
                break
            else:
                step = message["step"]
                if step > skip_until:
                    tracker.log(step, _without_none(message["metrics"]))
                    if shows_videos and "video" in message:
                        reason = _show_video(tracker, step, message["video"])
                        if reason:
                            shows_videos = False
                            answer(no_videos=reason)
                state["step"] = max(step, state["step"] or 0)
        start_timeout()
        tracker.finish(result._replace(scores=_without_none(result.scores)))
    except BaseException as error:  # a tracker may even raise SystemExit
        end = {"error": _error_text(error)}
    else:
        end = {"finished": True}
    if state:
        _write_state(state_file, state)
    answer(**end)


def _show_video(tracker: Any, step: int, path: str) -> str:
    """Send a video to a tracker. Returns the reason if the tracker fails, else ""."""
    try:
        tracker.show(step, path)
    except Exception as error:
        return _error_text(error)
    return ""


def read_last_tracked_step(state_file: Path, last_logged_step: int | None) -> int | None:
    """Read from its state file the environment steps of the last record that a tracker has.

    Args:
        state_file: File that the tracker's process wrote (the module's docstring describes it).
        last_logged_step: Last step in the run's log, used if the tracker's process was killed and
            the file has no step.

    Returns:
        The steps, or None for a run that the tracker doesn't have.
    """
    try:
        step = json.loads(state_file.read_text(encoding="utf-8")).get("step", last_logged_step)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return int(step) if is_finite(step) else None


def _write_state(path: Path, state: dict[str, Any]) -> None:
    # If this fails, a resumed run logs some epochs twice, which is better than no tracker.
    with contextlib.suppress(UserError), publish(path) as temporary:
        temporary.write_text(json.dumps(state) + "\n", encoding="utf-8")


def _without_none(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return metrics without those that are None: NaN and infinity, which JSON lacks."""
    return {name: value for name, value in metrics.items() if value is not None}


def _error_text(error: BaseException) -> str:
    """Return an error's type and message as one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def _exit_after(seconds: float) -> None:
    """Start a timer that ends this process after some seconds, even if it hangs."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    main()
