"""Find a checkpoint: the newest, the best, or one given by name.

Resuming from an earlier checkpoint starts a new branch and abandons later checkpoints of the old
one. Each checkpoint records its lineage, a list of [branch, step at which the branch starts]:

    [[0, 0]]              the first branch
    [[0, 0], [2, 400]]    branch 2, resumed from step 400 of the first branch

The newest checkpoint of a run has the most steps of the highest branch. The newest run is the one
whose newest checkpoint was saved last. The checkpoint records this time because copying changes
file times. Checkpoints without records (older versions, or written by hand) belong to the first
branch, with their file time.
"""

import json
import math
import re
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from puffer_mlx.checkpoint.folder import BEST, STATE, WEIGHTS
from puffer_mlx.checkpoint.tensor_files import read_header
from puffer_mlx.config import Base, Config
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import report_read_errors

STEPS = re.compile("[0-9]{16}")  # folder name of a checkpoint

WHICH = "name a run's folder, a checkpoint's folder or latest"

Lineage = tuple[tuple[int, int], ...]  # lineage: (branch, step at which it starts)
FIRST_LINEAGE: Lineage = ((0, 0),)


class CheckpointInfo(NamedTuple):
    """Position and score of a checkpoint.

    Args:
        folder: Checkpoint folder.
        line: Lineage of the checkpoint.
        step: Environment steps at the time of saving.
        saved: Time of saving, in nanoseconds since 1970.
        score: Score of the policy; None without a finite score.
    """

    folder: Path
    line: Lineage
    step: int
    saved: int
    score: float | None

    @property
    def order(self) -> tuple[int, int]:
        """Sort key for training order: (branch, step)."""
        return self.line[-1][0], self.step

    def is_ancestor_of(self, head: "CheckpointInfo") -> bool:
        """Return True if the newer checkpoint ``head`` descends from this one."""
        begins = dict(zip((branch for branch, _ in head.line), head.line[1:], strict=False))
        branch = self.line[-1][0]
        if branch == head.line[-1][0]:
            return self.step <= head.step
        return branch in begins and self.step <= begins[branch][1]


def lineage_metadata(line: Lineage) -> dict[str, str]:
    """Return the metadata of a checkpoint written now."""
    return {"line": json.dumps(line), "saved": str(time.time_ns())}


def checkpoints(folder: Path, holding: str = WEIGHTS) -> list[CheckpointInfo]:
    """Return the checkpoints of a run: abandoned ones first, the newest last.

    A link to a folder outside the run, for example on another disk, counts as a checkpoint. A link
    to a checkpoint of the same run doesn't.

    Args:
        folder: Run folder.
        holding: Name of a file that each checkpoint must contain.

    Raises:
        UserError: If the folder can't be read.
    """
    with report_read_errors(folder):
        paths = folder.iterdir() if folder.is_dir() else ()
        folders = [p for p in paths if STEPS.fullmatch(p.name) and not _is_alias(p)]
        every = [checkpoint_info(path, holding) for path in folders]
    labels = sorted((one for one in every if one), key=lambda one: one.order)
    return sorted(labels, key=lambda one: (one.is_ancestor_of(labels[-1]), *one.order))


def newest(runs: Path, holding: str = WEIGHTS) -> CheckpointInfo | None:
    """Return the newest checkpoint of the newest run, or None without one.

    Args:
        runs: Folder that contains the run folders.
        holding: Name of a file that the checkpoint must contain.

    Raises:
        UserError: If a folder can't be read, or a link to a run is broken. That run might be the
            newest.
    """
    with report_read_errors(runs):
        folders = list(runs.iterdir()) if runs.is_dir() else []
    above = () if runs.is_dir() else (runs, *runs.parents)
    for path in (*above, *(run for run in folders if run.name.isdecimal())):
        _refuse_dangling(path)
    labels = (checkpoints(run, holding) for run in folders if run.is_dir())
    heads = [each[-1] for each in labels if each]
    return max(heads, key=lambda head: (head.saved, head.folder), default=None)


def _is_alias(path: Path) -> bool:
    """Return True if a path links to an entry of the same folder, as ``best`` does."""
    return path.is_symlink() and path.resolve().parent == path.parent.resolve()


def _refuse_dangling(path: Path) -> None:
    """Raise an error if a path is a broken link.

    Raises:
        UserError: If the link's target doesn't exist.
    """
    if path.is_symlink() and not path.exists():
        target = path.parent / path.readlink()
        raise UserError(
            f"{path} is a link to {target}, which isn't there",
            "mount the disk it is on, or name an older checkpoint's folder, or remove the link",
        )


def find(path: str, config: Config, holding: str = WEIGHTS) -> Path:
    """Return the folder of a checkpoint.

    Args:
        path: ``latest``, ``best``, a run id, a run folder or a checkpoint folder. ``latest`` and
            ``best`` select the newest run of the environment; a folder may come before them:
            ``checkpoints/breakout/latest``. The newest checkpoint of a run is used.
        config: Configuration that gives the environment and the folder of all runs.
        holding: Name of a file that the checkpoint must contain: ``STATE`` to resume.

    Raises:
        UserError: If the checkpoint doesn't exist or can't be read.
    """
    if not path.strip():
        raise UserError("no checkpoint is named: the text is empty", WHICH)
    with report_read_errors(path):
        return _find(path, config, holding)


def _find(path: str, config: Config, holding: str) -> Path:
    """Return the folder for ``find``. An unreadable folder raises OSError."""
    home = Path(config.base.checkpoint_dir) / config.slug
    runs = _runs_before("best", path, home)
    if runs and (head := newest(runs)):
        path = str(best_of(head.folder.parent))
    runs = _runs_before("latest", path, home)
    if runs:
        root = runs
        checkpoint = newest(root, holding)
    else:
        candidates = (Path(path), home / path)
        root = next((folder for folder in candidates if folder.is_dir()), Path(path))
        if (root / WEIGHTS).is_file():
            if root.is_symlink() and not STEPS.fullmatch(root.name):
                # The target of ``best`` may be a link too.
                step = root.parent / root.readlink()
                root = step if STEPS.fullmatch(step.name) and step.parent == root.parent else root
            target = root.resolve()
            if not root.is_symlink() or (STEPS.fullmatch(root.name) and not _is_alias(root)):
                # The parent must be the run folder.
                return target if root.name in ("", "..") else root
            if target.parent != root.parent.resolve():  # ``best`` must stay in the run folder
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
            hint = _nowhere(path, home)[1] if path == "latest" else f"train first, or {WHICH}"
            raise UserError(f"there is no checkpoint in {root}", hint)
        raise UserError(*_nowhere(path, home))
    return checkpoint.folder


def _runs_before(word: str, path: str, home: Path) -> Path | None:
    """Return the folder of runs in a path such as ``best`` or ``breakout/best``.

    None means that the path is another one, or a folder.
    """
    above, _, last = path.rpartition("/")
    if last != word or (path != "latest" and any(p.is_dir() for p in (Path(path), home / path))):
        return None
    if not above:
        return home
    return next((p for p in (Path(above), home / above) if p.is_dir() and newest(p)), None)


def best_of(run: Path) -> Path:
    """Return the folder of a run's best checkpoint.

    Raises:
        UserError: If the run has none.
    """
    if not (run / BEST).is_dir():
        raise UserError(
            f"{run} has no best checkpoint", "train with --eval-interval N, or name latest"
        )
    return run / BEST


def find_any(
    path: str, folder: Path | None = None, env: str | None = None, holding: str = WEIGHTS
) -> Path:
    """Return the folder of a checkpoint of any environment, as for ``find``.

    Args:
        path: Checkpoint folder, run folder, run id, ``latest`` or ``best``. ``ENV/RUN`` is a run in
            ``folder``.
        folder: Folder of all runs; None for the default one.
        env: Environment to search; None for any. The newest checkpoint is used.
        holding: Name of a file that the checkpoint must contain.

    Raises:
        UserError: No checkpoint was found.
    """
    folder = folder or Path(Base().checkpoint_dir)
    if path == BEST and not Path(path).is_dir():
        path = str(best_of(find_any("latest", folder, env).parent))
    with report_read_errors(path):
        names = [env] if env else sorted(each.name for each in folder.glob("*") if each.is_dir())
        exists = Path(path.strip()).is_dir()
        if not names or "/" in path or (path != "latest" and exists):
            names = [""]
    folders = []
    problem = None
    for name in names:
        config = Config(name, base=Base(checkpoint_dir=str(folder)))
        try:
            folders.append(find(path, config, holding))
        except UserError as error:
            problem = error
    if folders:
        return max(folders, key=saved)
    if problem is not None and len(names) == 1 and (names[0] or exists):
        raise problem
    runs = sorted(f"{run.parent.name}/{run.name}" for run in folder.glob("*/*"))
    raise UserError(
        f"there is no checkpoint {path} in {folder}",
        f"runs there are: {', '.join(runs[-3:])}" if runs else "train first",
    )


def _nowhere(path: str, home: Path) -> tuple[str, str]:
    """Return the error message and hint for a path without a checkpoint.

    ``home`` is the folder with the environment's runs.
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
    """Return the weight file for ``--load-model-path``.

    A path with a suffix is the file itself; any other path names a checkpoint as in ``find``.

    Raises:
        UserError: If the checkpoint doesn't exist.
    """
    with report_read_errors(path):
        if Path(path).suffix and not Path(path).is_dir():
            return Path(path)
    return find(path, config) / WEIGHTS


def lineage_from(folder: Path, start: Path) -> Lineage:
    """Return the lineage of a run that resumes from the checkpoint ``start``.

    Raises:
        UserError: If the checkpoint doesn't exist, or the run folder can't be read.
    """
    begun = checkpoint_info(start)
    others = checkpoints(folder)
    if begun is None:
        raise UserError(f"there is no checkpoint in {start}", "name a checkpoint's folder")
    if not others or begun.order >= others[-1].order:
        return begun.line
    return (*begun.line, (_unused(others), begun.step))


def lineage_to(folder: Path, step: int) -> Lineage:
    """Return the lineage of a checkpoint whose predecessor isn't given.

    The predecessor is the newest checkpoint, or an earlier one if the newest has more than ``step``
    steps.

    Raises:
        UserError: If the folder can't be read.
    """
    others = checkpoints(folder)
    if not others:
        return FIRST_LINEAGE
    if step >= others[-1].step:
        return others[-1].line
    before = [one for one in others if one.step < step and one.is_ancestor_of(others[-1])]
    line, begin = (before[-1].line, before[-1].step) if before else ((), 0)
    return (*line, (_unused(others), begin))


def checkpoint_info(folder: Path, holding: str = WEIGHTS) -> CheckpointInfo | None:
    """Return position and score of a checkpoint.

    None means that the weights or the file ``holding`` are missing.
    """
    try:
        marks = [(folder / name).stat() for name in (WEIGHTS, holding)]
    except (FileNotFoundError, NotADirectoryError):
        return None
    step, line, saved, score = _records(folder, marks[0].st_mtime_ns, marks[0].st_ino)
    return CheckpointInfo(folder, line, step, saved or marks[-1].st_mtime_ns, score)


def score_of(folder: Path) -> float | None:
    """Return the score of a checkpoint's policy, or None without one."""
    checkpoint = checkpoint_info(folder)
    return checkpoint.score if checkpoint else None


def saved(folder: Path) -> int:
    """Return the time of saving in nanoseconds since 1970, or 0 if the checkpoint doesn't exist."""
    checkpoint = checkpoint_info(folder)
    return checkpoint.saved if checkpoint else 0


@lru_cache(100_000)  # each save looks at all checkpoints of the run
def _records(folder: Path, *_which: int) -> tuple[int, Lineage, int, float | None]:
    """Return step, lineage, time of saving (0 if unknown) and score.

    Damage is ignored here and reported on loading. ``_which`` invalidates the cache when the file
    changes.
    """
    metadata = {**_metadata(folder / WEIGHTS), **_metadata(folder / STATE)}
    numbers = _json(metadata.get("numbers"))
    step = _json(metadata.get("step"))
    if not isinstance(step, int) and STEPS.fullmatch(folder.name):
        step = int(folder.name)
    if not isinstance(step, int) and isinstance(numbers, dict):
        step = numbers.get("global_step")  # older versions had other folder names
    saved, score = _json(metadata.get("saved")), _json(metadata.get("score"))
    return (
        step if isinstance(step, int) else 0,
        _line(_json(metadata.get("line"))),
        saved if isinstance(saved, int) else 0,
        score if isinstance(score, int | float) and math.isfinite(score) else None,
    )


def _line(pairs: Any) -> Lineage:
    """Return a lineage decoded from JSON, or the first branch if the value isn't valid."""
    try:
        line = tuple((int(branch), int(begin)) for branch, begin in pairs)
    except (TypeError, ValueError, OverflowError):
        return FIRST_LINEAGE
    return line or FIRST_LINEAGE


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


def _unused(labels: list[CheckpointInfo]) -> int:
    """Return the number of a new branch."""
    return 1 + max(branch for one in labels for branch, _ in one.line)
