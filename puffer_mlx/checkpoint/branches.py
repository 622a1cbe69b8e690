"""Which checkpoint is meant: the newest, the best, or the one that a person names.

A run that goes on from a checkpoint other than its newest begins a new branch; what was trained
after that checkpoint before is abandoned. Each checkpoint records its line, the branches that led
to it, each with the step that it began at:

    [[0, 0]]              the first branch
    [[0, 0], [2, 400]]    branch 2, which went on from step 400 of the first one

The newest checkpoint of a run is the one with the most steps of the highest branch, and the newest
run the one whose newest checkpoint was saved last. All this is recorded inside: times of files
change when they are copied. Checkpoints without such records (of older versions, or written by
hand) count as the first branch's, saved when their file was written.
"""

import json
import math
import re
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from puffer_mlx.checkpoint.folder import STATE, WEIGHTS
from puffer_mlx.checkpoint.tensor_files import read_header
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import reading

STEPS = re.compile("[0-9]{16}")  # the name of a checkpoint

WHICH = "name a run's folder, a checkpoint's folder or latest"

Line = tuple[tuple[int, int], ...]  # (branch, the step that it began at)
FIRST: Line = ((0, 0),)


class Label(NamedTuple):
    """What a checkpoint says of itself.

    Args:
        folder: the checkpoint's.
        line: the branches that led to it.
        step: environment steps so far.
        saved: when, in nanoseconds since 1970.
        score: of the policy; None without one, or with one that isn't finite.
    """

    folder: Path
    line: Line
    step: int
    saved: int
    score: float | None

    @property
    def order(self) -> tuple[int, int]:
        """Sorts by training time: (branch, step)."""
        return self.line[-1][0], self.step

    def led_to(self, head: "Label") -> bool:
        """Whether a newer checkpoint goes on from this one; if not, this one is abandoned."""
        begins = dict(zip((branch for branch, _ in head.line), head.line[1:], strict=False))
        branch = self.line[-1][0]
        if branch == head.line[-1][0]:
            return self.step <= head.step
        return branch in begins and self.step <= begins[branch][1]


def record(line: Line) -> dict[str, str]:
    """The metadata of a checkpoint that is written now."""
    return {"line": json.dumps(line), "saved": str(time.time_ns())}


def checkpoints(folder: Path, holding: str = WEIGHTS) -> list[Label]:
    """Return a run's checkpoints that hold a file, the newest last and abandoned ones first.

    A link to a folder elsewhere, on another disk say, is a checkpoint; a link to a checkpoint of
    the same run is none.

    Raises:
        UserError: the folder can't be read.
    """
    with reading(folder):
        paths = folder.iterdir() if folder.is_dir() else ()
        folders = [p for p in paths if STEPS.fullmatch(p.name) and not _is_alias(p)]
        every = [label(path, holding) for path in folders]
    labels = sorted((one for one in every if one), key=lambda one: one.order)
    return sorted(labels, key=lambda one: (one.led_to(labels[-1]), *one.order))


def newest(runs: Path, holding: str = WEIGHTS) -> Label | None:
    """Return the newest checkpoint of the newest run in a folder of runs; None if there is none.

    Raises:
        UserError: A folder can't be read, or a link to a run leads nowhere: it may be the newest.
    """
    with reading(runs):
        folders = list(runs.iterdir()) if runs.is_dir() else []
    above = () if runs.is_dir() else (runs, *runs.parents)
    for path in (*above, *(run for run in folders if run.name.isdecimal())):
        _refuse_dangling(path)
    labels = (checkpoints(run, holding) for run in folders if run.is_dir())
    heads = [each[-1] for each in labels if each]
    return max(heads, key=lambda head: (head.saved, head.folder), default=None)


def _is_alias(path: Path) -> bool:
    """Return True if a path is a link to something in its own folder, as ``best`` is."""
    return path.is_symlink() and path.resolve().parent == path.parent.resolve()


def _refuse_dangling(path: Path) -> None:
    """Refuse a link that leads nowhere.

    Raises:
        UserError: The path is one.
    """
    if path.is_symlink() and not path.exists():
        target = path.parent / path.readlink()
        raise UserError(
            f"{path} is a link to {target}, which isn't there",
            "mount the disk it is on, or name an older checkpoint's folder, or remove the link",
        )


def find(path: str, config: Config, holding: str = WEIGHTS) -> Path:
    """The checkpoint that ``latest``, a RUN_ID, a run's folder or a checkpoint's folder names.

    ``latest`` is the newest checkpoint of the newest run of this environment; of a run it is the
    newest one, too (the most steps of the branch that was trained last).

    Args:
        path: see above.
        config: says where checkpoints are, and of which environment.
        holding: the file that it must have: ``STATE`` of those that a run can go on from.

    Raises:
        UserError: there is none, or it can't be read.
    """
    if not path.strip():
        raise UserError("no checkpoint is named: the text is empty", WHICH)
    with reading(path):
        return _find(path, config, holding)


def _find(path: str, config: Config, holding: str) -> Path:
    """``find``, where a folder that can't be read is an OSError."""
    root = home = Path(config.base.checkpoint_dir) / config.slug
    if path == "latest":
        checkpoint = newest(root, holding)
    else:
        candidates = (Path(path), root / path)
        root = next((folder for folder in candidates if folder.is_dir()), Path(path))
        if (root / WEIGHTS).is_file():
            if root.is_symlink() and not STEPS.fullmatch(root.name):
                # ``best`` leads to a checkpoint, which may be a link itself.
                step = root.parent / root.readlink()
                root = step if STEPS.fullmatch(step.name) and step.parent == root.parent else root
            target = root.resolve()
            if not root.is_symlink() or (STEPS.fullmatch(root.name) and not _is_alias(root)):
                return target if root.name in ("", "..") else root  # the run's folder is above
            if target.parent != root.parent.resolve():  # ``best`` is a link in it
                message = f"{root} is a link to {target}, out of its folder"
                raise UserError(message, f"name {target}")
            return root.parent / target.name
        checkpoint = next(reversed(checkpoints(root, holding)), None)
    run = checkpoint.folder.parent if checkpoint else root
    for link in run.iterdir() if run.is_dir() else ():
        if STEPS.fullmatch(link.name) and (not checkpoint or link.name > checkpoint.folder.name):
            _refuse_dangling(link)
    if checkpoint is None:
        if path == "latest" or root.is_dir():
            raise UserError(f"there is no checkpoint in {root}", f"train first, or {WHICH}")
        raise UserError(*_nowhere(path, home))
    return checkpoint.folder


def _nowhere(path: str, home: Path) -> tuple[str, str]:
    """What to say of a name that is neither a folder nor a run of an environment's; and a hint.

    Args:
        path: the name.
        home: the folder of the environment's runs.
    """
    message = f"there is no checkpoint in {path}"
    if home / path != Path(path):
        message += f": neither {path} nor {home / path} is a folder"
    runs = sorted(run.name for run in home.glob("*"))
    others = sorted(f"{run.parent.name}/{run.name}" for run in home.parent.glob("*/*"))
    if runs:
        return message, f"runs there are: {', '.join(runs[-3:])}"
    if others:
        return message, f"{home.name} has no run yet; of others there are {', '.join(others[-3:])}"
    return message, f"train first, or {WHICH}"


def find_weights(path: str, config: Config) -> Path:
    """The file that ``--load-model-path`` names: a file, or what ``find`` finds.

    Raises:
        UserError: there is none.
    """
    with reading(path):
        if Path(path).suffix and not Path(path).is_dir():
            return Path(path)
    return find(path, config) / WEIGHTS


def line_from(folder: Path, start: Path) -> Line:
    """The line of what goes on from a checkpoint, in a run's folder.

    Raises:
        UserError: there is no such checkpoint, or the folder can't be read.
    """
    begun, others = label(start), checkpoints(folder)
    if begun is None:
        raise UserError(f"there is no checkpoint in {start}", "name a checkpoint's folder")
    if not others or begun.order >= others[-1].order:
        return begun.line
    return (*begun.line, (_unused(others), begun.step))


def line_to(folder: Path, step: int) -> Line:
    """The line of a checkpoint that is written without saying what it goes on from.

    With more steps than the newest it goes on from that, else from the last one before it.

    Raises:
        UserError: the folder can't be read.
    """
    others = checkpoints(folder)
    if not others:
        return FIRST
    if step >= others[-1].step:
        return others[-1].line
    before = [one for one in others if one.step < step and one.led_to(others[-1])]
    line, begin = (before[-1].line, before[-1].step) if before else ((), 0)
    return (*line, (_unused(others), begin))


def label(folder: Path, holding: str = WEIGHTS) -> Label | None:
    """What a checkpoint says of itself; None if it doesn't hold a file, or not even weights."""
    try:
        marks = [(folder / name).stat() for name in (WEIGHTS, holding)]
    except (FileNotFoundError, NotADirectoryError):
        return None
    step, line, saved, score = _records(folder, marks[0].st_mtime_ns, marks[0].st_ino)
    return Label(folder, line, step, saved or marks[-1].st_mtime_ns, score)


def score_of(folder: Path) -> float | None:
    """The score of a checkpoint's policy; None if it has none, or there is no checkpoint."""
    checkpoint = label(folder)
    return checkpoint.score if checkpoint else None


def saved(folder: Path) -> int:
    """When a checkpoint was saved, in nanoseconds since 1970; 0 if there is none."""
    checkpoint = label(folder)
    return checkpoint.saved if checkpoint else 0


@lru_cache(100_000)  # a run that keeps all of its checkpoints looks at them with every save
def _records(folder: Path, *_which: int) -> tuple[int, Line, int, float | None]:
    """Step, line, time of saving (0: unknown) and score; whoever loads it reports damage."""
    metadata = {**_metadata(folder / WEIGHTS), **_metadata(folder / STATE)}
    numbers = _json(metadata.get("numbers"))
    step = _json(metadata.get("step"))
    if not isinstance(step, int) and STEPS.fullmatch(folder.name):
        step = int(folder.name)
    if not isinstance(step, int) and isinstance(numbers, dict):
        step = numbers.get("global_step")  # a folder of an older version, under another name
    saved, score = _json(metadata.get("saved")), _json(metadata.get("score"))
    return (
        step if isinstance(step, int) else 0,
        _line(_json(metadata.get("line"))),
        saved if isinstance(saved, int) else 0,
        score if isinstance(score, int | float) and math.isfinite(score) else None,
    )


def _line(pairs: Any) -> Line:
    """A line out of JSON; the first if it is none."""
    try:
        line = tuple((int(branch), int(begin)) for branch, begin in pairs)
    except (TypeError, ValueError, OverflowError):
        return FIRST
    return line or FIRST


def _metadata(path: Path) -> dict[str, str]:
    try:
        return read_header(path).metadata
    except (UserError, OSError):
        return {}


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def _unused(labels: list[Label]) -> int:
    """The number of a new branch."""
    return 1 + max(branch for one in labels for branch, _ in one.line)
