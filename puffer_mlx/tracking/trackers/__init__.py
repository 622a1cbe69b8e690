"""Trackers (W&B, TensorBoard, trackio), one per file of this folder.

A name in ``base.track`` is the name of a file here, whose ``TRACKER`` is a ``TrackerKind``. Each
tracker runs in a separate process (``tracker_process``), so it may raise an error, block or die
without effect on the training.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, Protocol, runtime_checkable

VIDEO = "eval/video"  # name of the videos in every tracker
SUCCESSFUL_STATUSES = ("finished", "stopped")  # of `RunResult.status`


class TrackedRun(NamedTuple):
    """Description of a run, sent to a tracker as JSON when the run starts.

    Args:
        run_id: Name of the run; a resumed run has the same.
        environment: Name of the environment, as in file names.
        log_dir: Folder for trackers that write files.
        project: Project of the run (``base.wandb_project``).
        group: Group of the run (``base.wandb_group``), or None.
        tag: Tag of the run (``base.tag``); ``none`` for a run without a tag.
        config: Complete configuration, nested, with every value resolved.
        machine: Versions, device, cores and memory, by name.
        command: Command line, quoted for a shell.
        resumed_step: Environment steps at which the run resumes, or None for a new run.
        last_tracked_step: Environment steps of the last record that this tracker has; None if the
            run is new to it. May exceed ``resumed_step``: the records between them are sent again.
    """

    run_id: str
    environment: str
    log_dir: str
    project: str
    group: str | None
    tag: str
    config: dict[str, Any]
    machine: dict[str, str]
    command: str
    resumed_step: int | None = None
    last_tracked_step: int | None = None

    @property
    def name(self) -> str:
        """Name of the run for display: environment and run id."""
        return f"{self.environment}-{self.run_id}"

    @property
    def tags(self) -> list[str]:
        """List of the run's tag, as W&B needs it; empty for a run without a tag."""
        return [] if self.tag == "none" else [self.tag]

    @property
    def machine_info(self) -> dict[str, str]:
        """Facts about the run besides its configuration: machine, command line and tag, by name."""
        return {**self.machine, "command": self.command, "tag": ", ".join(self.tags)}


class RunResult(NamedTuple):
    """Result of a run, sent to a tracker when the run ends.

    Args:
        status: ``finished``; ``stopped`` (by the user, before the last epoch); ``failed`` (by an
            error); or ``killed`` (without a message to the tracker).
        scores: Final scores, named ``final/NAME`` for each ``env/NAME``, from the evaluation after
            training, else from the last epoch that has scores.
        weights: Path of the last checkpoint's weights; "" without a checkpoint.
    """

    status: str
    scores: dict[str, float]
    weights: str = ""

    @property
    def ok(self) -> bool:
        """True if the run finished or was stopped, False if it failed or was killed."""
        return self.status in SUCCESSFUL_STATUSES


class Tracker(Protocol):
    """Interface of a tracker of one run. If a method raises an error, the tracker is dropped."""

    def start(self, run: TrackedRun) -> str:
        """Start or resume the run. Returns where the user finds it: a URL, folder or command."""
        ...

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record an epoch's metrics, all finite. ``step`` is the number of environment steps."""
        ...

    def finish(self, result: RunResult) -> None:
        """End the run in the tracker. No method is called afterwards."""
        ...


@runtime_checkable
class ShowsVideos(Protocol):
    """Interface of a tracker that shows videos. If ``show`` raises, it gets no more videos."""

    def show(self, step: int, path: str) -> None:
        """Record the GIF at ``path``, for the step whose metrics were logged just before."""
        ...


class TrackerKind(NamedTuple):
    """An available kind of tracker, for example W&B.

    Args:
        package: Python package that it imports; ``pip install 'puffer-mlx[NAME]'`` installs it.
        make: Creates the tracker of one run.
        accepts_repeats: True if a step that was logged before may be logged again, as happens in a
            resumed run.
    """

    package: str
    make: Callable[[], Tracker]
    accepts_repeats: bool = True


def find_tracker(name: str) -> TrackerKind:
    """Return the kind of tracker with the given name, which is the name of a file here."""
    return import_module(f"{__name__}.{name}").TRACKER


def flatten_dict(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries into one with dotted names, such as train.gamma."""
    flattened: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            flattened |= flatten_dict(value, f"{prefix}{name}.")
        else:
            flattened[f"{prefix}{name}"] = value
    return flattened
