"""A run in other programs' trackers: one file of this folder for each.

A name in ``base.track`` is a file's name here. A file's ``TRACKER`` is its ``TrackerKind``; nothing
else needs to know of it. Each runs in a process of its own (``tracker_process``), so it may raise,
block or die; the training doesn't notice.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, Protocol, runtime_checkable

VIDEO = "eval/video"  # its name there
WELL = ("finished", "stopped")  # how a run ends that nothing was wrong with


class TrackedRun(NamedTuple):
    """What a tracker is told when it starts. All of it is JSON.

    Args:
        run_id: the run's name, the same when it goes on.
        environment: its name, as a file's name.
        log_dir: where a tracker writes that has no place of its own.
        project: of ``base.wandb_project``; likewise group and tag, whose ``none`` is no tag.
        config: the whole configuration, nested, nothing left open.
        machine: versions, device, cores, memory and the like, by name.
        command: the words that started it, as a shell takes them.
        step: where a run goes on, in environment steps; None: it begins.
        known_to: the last step that this tracker was told of before that, which may be later than
            ``step``: those in between come again. None: it knows nothing of the run.
    """

    run_id: str
    environment: str
    log_dir: str
    project: str
    group: str
    tag: str
    config: dict[str, Any]
    machine: dict[str, str]
    command: str
    step: int | None = None
    known_to: int | None = None

    @property
    def name(self) -> str:
        """What people see of it: environment and run."""
        return f"{self.environment}-{self.run_id}"

    @property
    def tags(self) -> list[str]:
        """The tag, if there is one."""
        return [] if self.tag == "none" else [self.tag]

    @property
    def about(self) -> dict[str, str]:
        """Where it was started, and how, by name."""
        return {**self.machine, "command": self.command, "tag": ", ".join(self.tags)}


class RunResult(NamedTuple):
    """What a tracker is told when the run ends.

    Args:
        status: ``finished``; ``stopped`` before its last epoch, as it was asked to; ``failed`` by
            an error; ``killed``, which nobody could tell the tracker.
        scores: the final ones, ``final/NAME`` for each ``env/NAME``: of the evaluation after
            training, else of the last epoch that has any, of its own evaluation if it had one.
        weights: path of the last checkpoint's weights; empty if there is none.
    """

    status: str
    scores: dict[str, float]
    weights: str = ""

    @property
    def well(self) -> bool:
        """Whether nothing went wrong."""
        return self.status in WELL


class Tracker(Protocol):
    """One tracker's side of a run. Whatever a method raises, the tracker is dropped for it."""

    def start(self, run: TrackedRun) -> str:
        """Begin or go on with the run there; where a person finds it."""
        ...

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record an epoch; all numbers are finite."""
        ...

    def finish(self, result: RunResult) -> None:
        """End the run there; nothing comes after that."""
        ...


@runtime_checkable
class ShowsVideos(Protocol):
    """A tracker that takes videos, too. If it raises, it is given no more, and keeps the run."""

    def show(self, step: int, path: str) -> None:
        """Record a GIF of that step, whose metrics it was told just before."""
        ...


class TrackerKind(NamedTuple):
    """A tracker that there is.

    Args:
        package: what is imported, which may not be installed; ``pip install 'puffer-mlx[NAME]'``
            installs it.
        make: makes its side of one run.
        takes_again: whether it is told once more of steps that come again after a run was resumed.
    """

    package: str
    make: Callable[[], Tracker]
    takes_again: bool = True


def find(name: str) -> TrackerKind:
    """The tracker of that name: a file of this folder."""
    return import_module(f"{__name__}.{name}").TRACKER


def flat(nested: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted names: train.gamma."""
    flattened: dict[str, Any] = {}
    for name, value in nested.items():
        inner = isinstance(value, dict)
        flattened |= flat(value, f"{before}{name}.") if inner else {f"{before}{name}": value}
    return flattened
