"""Weights & Biases, as PufferLib 4.0's --wandb: run RUN_ID of a project, in a group, with a tag.

Without a login or a connection, or with WANDB_MODE=offline, wandb writes to
``log_dir/wandb/offline-run-*``, which ``wandb sync`` uploads later. wandb's steps can't decrease,
so steps that a resumed run repeats aren't logged again.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import os
from pathlib import Path
from typing import Any

from puffer_mlx.tracking.trackers import VIDEO, RunResult, TrackedRun, TrackerKind

CONNECT_TIMEOUT = 20.0  # seconds; wandb's default of 90 is longer than a short run


class Wandb:
    """A run in Weights & Biases. The last checkpoint's weights become an artifact."""

    def start(self, run: TrackedRun) -> str:
        """Start or resume the run in W&B by its run id. Returns the URL or the offline folder."""
        import wandb

        self._artifact_name = run.run_id
        folder = Path(os.environ.get("WANDB_DIR", run.log_dir))
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):  # otherwise W&B silently uses another folder
            raise PermissionError(f"{folder} can't be written to")
        arguments: dict[str, Any] = {
            "id": run.run_id,
            "project": run.project,
            "group": run.group,
            "tags": run.tags,
            "config": {**run.config, "machine": run.machine, "command": run.command},
            "dir": str(folder),
            "resume": "allow",
            "settings": wandb.Settings(
                console="off",
                silent=True,
                init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", CONNECT_TIMEOUT)),
                x_stats_pid=os.getppid(),  # measure CPU and memory of the trainer's process
            ),
        }
        reason = ""
        try:
            self._run = wandb.init(**arguments)
        except wandb.Error as error:  # not logged in, or no network
            reason = f" ({str(error).splitlines()[0]})"
            wandb.teardown()
            self._run = wandb.init(**arguments, mode="offline")
        if self._run.offline:
            local = os.path.relpath(self._run.settings.sync_dir)
            return f"offline{reason}; `wandb sync {local}` sends it"
        return self._run.url or ""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record an epoch's metrics in W&B."""
        self._run.log(metrics, step=step)

    def show(self, step: int, path: str) -> None:
        """Record a video in the same W&B row as its epoch."""
        import wandb

        self._run.log({VIDEO: wandb.Video(path)}, step=step)

    def finish(self, result: RunResult) -> None:
        """Write the final scores and status to W&B's summary, and upload the weights."""
        import wandb

        self._run.summary.update({**result.scores, "status": result.status})
        if result.weights:
            artifact = wandb.Artifact(self._artifact_name, type="model")
            artifact.add_file(result.weights)
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if result.ok else 1)


TRACKER = TrackerKind("wandb", Wandb, accepts_repeats=False)
