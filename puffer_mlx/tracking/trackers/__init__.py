"""Trackers, one per file of this folder.

A name in ``base.track`` is the name of a file here; its ``TRACKER`` is a ``TrackerKind``. Each
tracker runs in a separate process (``tracker_process``), so it may raise, block or die without
effect on the training.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, Protocol, runtime_checkable

VIDEO = "eval/video"  # name of videos in trackers
OK = ("finished", "stopped")  # statuses of a run without an error


class TrackedRun(NamedTuple):
    """Description of a run for a tracker. All values are JSON.

    Args:
        run_id: Name of the run; a resumed run has the same.
        environment: Name of the environment, as in file names.
        log_dir: Folder for trackers that write files.
        project: ``base.wandb_project``.
        group: ``base.wandb_group``; None without a group.
        tag: ``base.tag``; ``none`` is no tag.
        config: Complete configuration, nested, with every value resolved.
        machine: Versions, device, cores and memory, by name.
        command: Command line, quoted for a shell.
        step: Environment steps at which the run resumes, or None for a new run.
        known_to: Last step that this tracker has, which may be later than ``step``: steps between
            them are sent again. None for a tracker without the run.
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
    step: int | None = None
    known_to: int | None = None

    @property
    def name(self) -> str:
        """Display name: environment and run."""
        return f"{self.environment}-{self.run_id}"

    @property
    def tags(self) -> list[str]:
        """List of the tag; empty without one."""
        return [] if self.tag == "none" else [self.tag]

    @property
    def machine_info(self) -> dict[str, str]:
        """Machine, command and tags, by name."""
        return {**self.machine, "command": self.command, "tag": ", ".join(self.tags)}


class RunResult(NamedTuple):
    """Result of a run for a tracker.

    Args:
        status: ``finished``; ``stopped`` before the last epoch, by request; ``failed`` by an error;
            or ``killed`` without a message to the tracker.
        scores: Final scores, ``final/NAME`` for each ``env/NAME``: of the evaluation after
            training, else of the last epoch that has scores.
        weights: Path of the last checkpoint's weights; "" without a checkpoint.
    """

    status: str
    scores: dict[str, float]
    weights: str = ""

    @property
    def ok(self) -> bool:
        """True if the run ended without an error."""
        return self.status in OK


class Tracker(Protocol):
    """A run in a tracker. A tracker whose method raises an error is dropped."""

    def start(self, run: TrackedRun) -> str:
        """Start or resume the run. Returns where to find it."""
        ...

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record an epoch's metrics, all finite."""
        ...

    def finish(self, result: RunResult) -> None:
        """End the run; no method is called afterwards."""
        ...


@runtime_checkable
class ShowsVideos(Protocol):
    """A tracker that takes videos. If ``show`` raises, the tracker gets no more videos."""

    def show(self, step: int, path: str) -> None:
        """Record a GIF of the step whose metrics were logged just before."""
        ...


class TrackerKind(NamedTuple):
    """An available tracker.

    Args:
        package: Package that it imports; ``pip install 'puffer-mlx[NAME]'`` installs it.
        make: Returns the tracker of one run.
        takes_again: Log the steps that a resumed run repeats again.
    """

    package: str
    make: Callable[[], Tracker]
    takes_again: bool = True


def find(name: str) -> TrackerKind:
    """Return the tracker of that name: a file of this folder."""
    return import_module(f"{__name__}.{name}").TRACKER


def flat(nested: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested dictionaries as one, with dotted names: train.gamma."""
    flattened: dict[str, Any] = {}
    for name, value in nested.items():
        inner = isinstance(value, dict)
        flattened |= flat(value, f"{before}{name}.") if inner else {f"{before}{name}": value}
    return flattened
