"""trackio by Hugging Face: rows of a local database; ``trackio show`` displays them.

The network is used only if the environment variable TRACKIO_SPACE_ID or TRACKIO_SERVER_URL is set.
The database is in TRACKIO_DIR, by default in the user's cache. Steps that a resumed run repeats
aren't logged again, because trackio would show them twice.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import warnings
from typing import Any

from puffer_mlx.tracking.trackers import VIDEO, RunResult, TrackedRun, TrackerKind, flatten_dict


class Trackio:
    """A run in trackio. If a write fails, it raises an error: trackio itself only warns."""

    def start(self, run: TrackedRun) -> str:
        """Start or resume the run in trackio. Returns the database and the command to see it."""
        import trackio
        from trackio.utils import TRACKIO_DIR

        self._warnings: list[str] = []
        warnings.showwarning = self._on_warning
        self._step = run.resumed_step or 0
        self._run = trackio.init(
            project=run.project,
            name=run.name,
            group=run.group,
            config={**flatten_dict(run.config), **flatten_dict({"machine": run.machine_info})},
            resume="allow",
            embed=False,
            auto_log_cpu=False,  # each epoch's record already contains memory and load
            auto_log_gpu=False,
        )
        self._raise_warning()
        return f"{TRACKIO_DIR}; `trackio show --project {run.project}` shows it"

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record an epoch's metrics in trackio as a row."""
        self._run.log(dict(metrics), step=step)
        self._step = max(self._step, step)
        self._raise_warning()

    def show(self, step: int, path: str) -> None:
        """Record a video in trackio as a separate row. trackio copies the file."""
        import trackio

        self._run.log({VIDEO: trackio.Video(path)}, step=step)
        self._raise_warning()

    def finish(self, result: RunResult) -> None:
        """Write the run's final scores and status as the last row: trackio has no summary."""
        self._run.log({**result.scores, "status": result.status}, step=self._step)
        self._run.finish()
        self._raise_warning()

    def _on_warning(self, message: Any, kind: type, file: str, *_: Any) -> None:
        if "trackio" in file:
            self._warnings.append(str(message))

    def _raise_warning(self) -> None:
        """Raise OSError if trackio has given a warning."""
        if self._warnings:
            raise OSError(self._warnings[0])


TRACKER = TrackerKind("trackio", Trackio, accepts_repeats=False)
