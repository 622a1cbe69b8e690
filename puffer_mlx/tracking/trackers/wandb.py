"""Weights & Biases, as PufferLib 4.0's --wandb: run RUN_ID of a project, in a group, with a tag.

Without a login or a connection, and with WANDB_MODE=offline, wandb writes to
``log_dir/wandb/offline-run-*``, and ``wandb sync`` uploads that later. wandb's steps can't
decrease, so steps that a resumed run repeats aren't logged again.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import os
from pathlib import Path
from typing import Any

from puffer_mlx.tracking.trackers import VIDEO, RunResult, TrackedRun, TrackerKind

CONNECT_TIMEOUT = 20.0  # seconds until wandb goes offline; its own 90 would lose short runs


class Wandb:
    """A run in W&B. The last checkpoint's weights are its artifact."""

    def start(self, run: TrackedRun) -> str:
        """Start or resume the run, with the run's name as its id."""
        import wandb

        self._artifact = run.run_id
        folder = Path(os.environ.get("WANDB_DIR", run.log_dir))
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):  # W&B would use another folder
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
                x_stats_pid=os.getppid(),
            ),
        }
        why = ""
        try:
            self._run = wandb.init(**arguments)
        except wandb.Error as error:  # no login, no network
            why = f" ({str(error).splitlines()[0]})"
            wandb.teardown()
            self._run = wandb.init(**arguments, mode="offline")
        if self._run.offline:
            local = os.path.relpath(self._run.settings.sync_dir)
            return f"offline{why}; `wandb sync {local}` sends it"
        return self._run.url or ""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record an epoch."""
        self._run.log(metrics, step=step)

    def show(self, step: int, path: str) -> None:
        """Record a video in the same row as the epoch."""
        import wandb

        self._run.log({VIDEO: wandb.Video(path)}, step=step)

    def finish(self, result: RunResult) -> None:
        """Write the final scores and status to the summary, and the weights as an artifact."""
        import wandb

        self._run.summary.update({**result.scores, "status": result.status})
        if result.weights:
            artifact = wandb.Artifact(self._artifact, type="model")
            artifact.add_file(result.weights)
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if result.ok else 1)


TRACKER = TrackerKind("wandb", Wandb, takes_again=False)
