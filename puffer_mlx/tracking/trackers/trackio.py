"""trackio by Hugging Face: rows of a local database; ``trackio show`` displays them.

No network unless trackio's variables name a Space or a server (TRACKIO_SPACE_ID,
TRACKIO_SERVER_URL). The database is in TRACKIO_DIR, by default in the user's cache. Steps that a
resumed run repeats aren't logged again, because trackio would show them twice.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import warnings
from typing import Any

from puffer_mlx.tracking.trackers import VIDEO, RunResult, TrackedRun, TrackerKind, flat


class Trackio:
    """A run in trackio, which reports failed writes as warnings."""

    def start(self, run: TrackedRun) -> str:
        """Start or resume the run of this name."""
        import trackio
        from trackio.utils import TRACKIO_DIR

        self._faults: list[str] = []
        warnings.showwarning = self._on_warning
        self._step = run.step or 0
        self._run = trackio.init(
            project=run.project,
            name=run.name,
            group=run.group,
            config={**flat(run.config), **flat({"machine": run.machine_info})},
            resume="allow",
            embed=False,
            auto_log_cpu=False,  # the records have memory and load
            auto_log_gpu=False,
        )
        self._raise()
        return f"{TRACKIO_DIR}; `trackio show --project {run.project}` shows it"

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record an epoch."""
        self._run.log(dict(metrics), step=step)
        self._step = max(self._step, step)
        self._raise()

    def show(self, step: int, path: str) -> None:
        """Record a video in a separate row. trackio copies the file."""
        import trackio

        self._run.log({VIDEO: trackio.Video(path)}, step=step)
        self._raise()

    def finish(self, result: RunResult) -> None:
        """Write the final scores and status as the last row: trackio has no summary."""
        self._run.log({**result.scores, "status": result.status}, step=self._step)
        self._run.finish()
        self._raise()

    def _on_warning(self, message: Any, kind: type, file: str, *where: Any) -> None:
        if "trackio" in file:
            self._faults.append(str(message))

    def _raise(self) -> None:
        """Raise an error for a captured warning."""
        if self._faults:
            raise OSError(self._faults[0])


TRACKER = TrackerKind("trackio", Trackio, takes_again=False)
