"""Find checkpoints (the newest, the best, or a given one), and record the lineage of new ones.

Resuming from an earlier checkpoint starts a new branch and abandons later checkpoints of the old
branch. Each checkpoint records its lineage, a list of [branch, step at which the branch starts]:

    [[0, 0]]              the first branch
    [[0, 0], [2, 400]]    branch 2, resumed from step 400 of the first branch

The newest checkpoint of a run has the most steps of the highest branch. The newest run is the run
whose newest checkpoint was saved last. Checkpoints record the time of saving, because copying
changes file times. Checkpoints without these records (from older versions, or written by hand)
belong to the first branch, and their file time is used.
"""

import json
import math
import re
import time
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from puffer_mlx.checkpoint.folder import BEST, STATE, WEIGHTS
from puffer_mlx.checkpoint.tensor_files import read_tensor_header
from puffer_mlx.config import Base, Config
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import report_read_errors

CHECKPOINT_NAME = re.compile("[0-9]{16}")  # folder name of a checkpoint

NAME_HINT = "name a run's folder, a checkpoint's folder or latest"

Lineage = tuple[tuple[int, int], ...]  # (branch, step at which it starts), ...
FIRST_LINEAGE: Lineage = ((0, 0),)


class CheckpointInfo(NamedTuple):
    """Facts about one saved checkpoint: its folder, lineage, step, time and score.

    Args:
        folder: Checkpoint folder.
        lineage: Branches that lead to the checkpoint.
        step: Environment steps at the time of saving.
        saved: Time of saving, in nanoseconds since 1970.
        score: Score of the policy; None without a finite score.
    """

    folder: Path
    lineage: Lineage
    step: int
    saved: int
    score: float | None

    @property
    def order(self) -> tuple[int, int]:
        """Key that sorts a run's checkpoints in the order of training: (branch, step)."""
        return self.lineage[-1][0], self.step

    def is_ancestor_of(self, head: "CheckpointInfo") -> bool:
        """Return True if the newer checkpoint ``head`` was trained from this checkpoint."""
        branch = self.lineage[-1][0]
        last_steps = {  # last step of each branch that leads to ``head``
            earlier_branch: next_begin
            for (earlier_branch, _), (_, next_begin) in pairwise(head.lineage)
        }
        last_steps[head.lineage[-1][0]] = head.step
        return branch in last_steps and self.step <= last_steps[branch]


def lineage_metadata(lineage: Lineage) -> dict[str, str]:
    """Return metadata of a new checkpoint: its lineage (branches that led to it) and the time."""
    return {"line": json.dumps(lineage), "saved": str(time.time_ns())}


def list_checkpoints(folder: Path, required_file: str = WEIGHTS) -> list[CheckpointInfo]:
    """List the checkpoints of a run: abandoned ones first, the newest last.

    A link to a folder outside the run, for example on another disk, counts as a checkpoint. A link
    to a checkpoint of the same run doesn't.

    Args:
        folder: Run folder.
        required_file: Name of a file that each checkpoint must contain.

    Raises:
        UserError: The folder can't be read.
    """
    with report_read_errors(folder):
        paths = folder.iterdir() if folder.is_dir() else ()
        folders = [p for p in paths if CHECKPOINT_NAME.fullmatch(p.name) and not _is_alias(p)]
        infos = [checkpoint_info(path, required_file) for path in folders]
    complete = sorted((info for info in infos if info), key=lambda info: info.order)
    abandoned = [info for info in complete if not info.is_ancestor_of(complete[-1])]
    return abandoned + [info for info in complete if info.is_ancestor_of(complete[-1])]


def newest_checkpoint(runs: Path, required_file: str = WEIGHTS) -> CheckpointInfo | None:
    """Return facts about the newest checkpoint of the newest run, or None if there is none.

    Args:
        runs: Folder that contains the run folders.
        required_file: Name of a file that the checkpoint must contain.

    Raises:
        UserError: A folder can't be read, or a link to a run is broken (it may be the newest run).
    """
    with report_read_errors(runs):
        folders = list(runs.iterdir()) if runs.is_dir() else []
    # If the folder is missing, a broken link to it or to a folder above may be the reason.
    above = () if runs.is_dir() else (runs, *runs.parents)
    for path in (*above, *(run for run in folders if run.name.isdecimal())):
        _refuse_broken_link(path)
    by_run = (list_checkpoints(run, required_file) for run in folders if run.is_dir())
    heads = [infos[-1] for infos in by_run if infos]
    return max(heads, key=lambda head: (head.saved, head.folder), default=None)


def _is_alias(path: Path) -> bool:
    """Return True if a path is a link to an entry of the same folder, such as ``best``."""
    return path.is_symlink() and path.resolve().parent == path.parent.resolve()


def _refuse_broken_link(path: Path) -> None:
    """Raise an error if a path is a link whose target doesn't exist.

    Raises:
        UserError: The link's target doesn't exist.
    """
    if path.is_symlink() and not path.exists():
        target = path.parent / path.readlink()
        raise UserError(
            f"{path} is a link to {target}, which isn't there",
            "mount its disk, or name an older checkpoint's folder, or remove the link",
        )


def find_checkpoint(path: str, config: Config, required_file: str = WEIGHTS) -> Path:
    """Find a checkpoint of the configured environment. Returns its folder.

    Args:
        path: ``latest``, ``best``, a run id, a run folder or a checkpoint folder. ``latest`` and
            ``best`` select the newest run of the environment, or in a folder that precedes them:
            ``checkpoints/breakout/latest``. The newest checkpoint of a run is used.
        config: Configuration with the environment and the folder of all runs.
        required_file: Name of a file that the checkpoint must contain: ``STATE`` to resume.

    Raises:
        UserError: The checkpoint doesn't exist or can't be read.
    """
    if not path.strip():
        raise UserError("the name of the checkpoint is empty", NAME_HINT)
    with report_read_errors(path):
        return _find_folder(path, config, required_file)


def _find_folder(path: str, config: Config, required_file: str) -> Path:
    """Return the checkpoint folder that a path, a run id, ``latest`` or ``best`` selects.

    Raises:
        UserError: The checkpoint doesn't exist.
        OSError: A folder can't be read.
    """
    env_runs = Path(config.base.checkpoint_dir) / config.slug
    runs = _runs_folder("best", path, env_runs)
    if runs and (head := newest_checkpoint(runs)):
        path = str(best_checkpoint(head.folder.parent))
    runs = _runs_folder("latest", path, env_runs)
    if runs:
        root = runs
        checkpoint = newest_checkpoint(root, required_file)
    else:
        candidates = (Path(path), env_runs / path)
        root = next((folder for folder in candidates if folder.is_dir()), Path(path))
        if (root / WEIGHTS).is_file():
            return _follow_alias(root)
        checkpoint = next(reversed(list_checkpoints(root, required_file)), None)
    run = checkpoint.folder.parent if checkpoint else root
    paths = run.iterdir() if run.is_dir() else ()
    for link in paths:  # a broken link may be a newer checkpoint than the one found
        is_newer = not checkpoint or link.name > checkpoint.folder.name
        if is_newer and CHECKPOINT_NAME.fullmatch(link.name):
            _refuse_broken_link(link)
    if checkpoint is None:
        if path == "latest" or root.is_dir():
            hint = (
                _not_found(path, env_runs)[1]
                if path == "latest"
                else f"train first, or {NAME_HINT}"
            )
            raise UserError(f"there is no checkpoint in {root}", hint)
        raise UserError(*_not_found(path, env_runs))
    return checkpoint.folder


def _follow_alias(path: Path) -> Path:
    """Return a checkpoint's path in its run folder, following a link such as ``best``.

    A checkpoint that is itself a link, for example to another disk, isn't followed.

    Raises:
        UserError: The link leads to a checkpoint outside its folder.
    """
    if path.is_symlink() and not CHECKPOINT_NAME.fullmatch(path.name):
        # The target of ``best`` may be a link too, to a checkpoint on another disk.
        linked = path.parent / path.readlink()
        if CHECKPOINT_NAME.fullmatch(linked.name) and linked.parent == path.parent:
            path = linked
    target = path.resolve()
    is_checkpoint_link = CHECKPOINT_NAME.fullmatch(path.name) and not _is_alias(path)
    if not path.is_symlink() or is_checkpoint_link:
        # Callers use the parent as the run folder; that of ".." or "" isn't.
        return target if path.name in ("", "..") else path
    if target.parent != path.parent.resolve():  # ``best`` must stay in the run folder
        message = f"{path} is a link to {target}, outside its folder"
        raise UserError(message, f"name {target}")
    return path.parent / target.name


def _runs_folder(keyword: str, path: str, env_runs: Path) -> Path | None:
    """Return the folder of runs that a path such as ``best`` or ``breakout/best`` selects.

    Args:
        keyword: ``best`` or ``latest``.
        path: Path that the user named.
        env_runs: Folder of the environment's runs.

    Returns:
        The folder, or None if the path ends with another word or is an existing folder. Only
        ``latest`` alone always selects the newest run.
    """
    above, _, last = path.rpartition("/")
    is_folder = Path(path).is_dir() or (env_runs / path).is_dir()
    if last != keyword or (is_folder and path != "latest"):
        return None
    if not above:
        return env_runs
    return next(
        (p for p in (Path(above), env_runs / above) if p.is_dir() and newest_checkpoint(p)), None
    )


def best_checkpoint(run: Path) -> Path:
    """Return the folder of a run's best checkpoint.

    Raises:
        UserError: The run has no best checkpoint.
    """
    if not (run / BEST).is_dir():
        raise UserError(
            f"{run} has no best checkpoint", "train with --eval-interval N, or name latest"
        )
    return run / BEST


def find_any_checkpoint(
    path: str, folder: Path | None = None, env: str | None = None, required_file: str = WEIGHTS
) -> Path:
    """Find a checkpoint of any environment. Returns its folder.

    Args:
        path: Checkpoint folder, run folder, run id, ``latest`` or ``best``. ``ENV/RUN`` is a run in
            ``folder``.
        folder: Folder of all runs; None for the default one.
        env: Environment to search; None for any. The newest checkpoint is used.
        required_file: Name of a file that the checkpoint must contain.

    Raises:
        UserError: The checkpoint doesn't exist or can't be read.
    """
    folder = folder or Path(Base().checkpoint_dir)
    if path == BEST and not Path(path).is_dir():
        path = str(best_checkpoint(find_any_checkpoint("latest", folder, env).parent))
    with report_read_errors(path):
        names = [env] if env else sorted(each.name for each in folder.glob("*") if each.is_dir())
        exists = Path(path.strip()).is_dir()
        if not names or "/" in path or (path != "latest" and exists):
            names = [""]  # the path includes the environment or is complete
    folders = []
    problem = None
    for name in names:
        config = Config(name, base=Base(checkpoint_dir=str(folder)))
        try:
            folders.append(find_checkpoint(path, config, required_file))
        except UserError as error:
            problem = error
    if folders:
        return max(folders, key=saved_time)
    if problem is not None and len(names) == 1 and (names[0] or exists):
        raise problem
    runs = sorted(f"{run.parent.name}/{run.name}" for run in folder.glob("*/*"))
    raise UserError(
        f"there is no checkpoint {path} in {folder}",
        f"existing runs: {', '.join(runs[-3:])}" if runs else "train first",
    )


def _not_found(path: str, env_runs: Path) -> tuple[str, str]:
    """Return an error message and a hint for a path at which no checkpoint was found.

    Args:
        path: Path that the user named.
        env_runs: Folder of the environment's runs.
    """
    message = f"there is no checkpoint in {path}"
    if env_runs / path != Path(path):
        message += f": neither {path} nor {env_runs / path} is a folder"
    runs = sorted(run.name for run in env_runs.glob("*"))
    other_runs = sorted(f"{run.parent.name}/{run.name}" for run in env_runs.parent.glob("*/*"))
    if runs:
        return message, f"existing runs: {', '.join(runs[-3:])}"
    if other_runs:
        return message, f"{env_runs.name} has no run yet; other runs: {', '.join(other_runs[-3:])}"
    return message, f"train first, or {NAME_HINT}"


def find_weights(path: str, config: Config) -> Path:
    """Return the weight file that ``--load-model-path`` names.

    Args:
        path: A file (any path with a suffix), or a checkpoint as in ``find_checkpoint``.
        config: Configuration with the environment and the folder of all runs.

    Raises:
        UserError: The checkpoint doesn't exist.
    """
    with report_read_errors(path):
        if Path(path).suffix and not Path(path).is_dir():
            return Path(path)
    return find_checkpoint(path, config) / WEIGHTS


def lineage_after(folder: Path, start: Path) -> Lineage:
    """Return the lineage of the checkpoints that a run will write if it resumes from ``start``.

    A lineage is the list of branches that lead to a checkpoint. A new branch begins if the run has
    newer checkpoints.

    Args:
        folder: Run folder.
        start: Folder of one of the run's checkpoints.

    Raises:
        UserError: The checkpoint doesn't exist, or the run folder can't be read.
    """
    start_info = checkpoint_info(start)
    saved = list_checkpoints(folder)
    if start_info is None:
        raise UserError(f"there is no checkpoint in {start}", "name a checkpoint's folder")
    if not saved or start_info.order >= saved[-1].order:
        return start_info.lineage
    return (*start_info.lineage, (_new_branch(saved), start_info.step))


def lineage_at(folder: Path, step: int) -> Lineage:
    """Return the lineage, a list of branches, of a new checkpoint without a given predecessor.

    The predecessor is the newest checkpoint of the run folder. If that has more steps, it is the
    newest checkpoint of the same lineage with fewer steps.

    Args:
        folder: Run folder.
        step: Environment steps of the new checkpoint.

    Raises:
        UserError: The folder can't be read.
    """
    saved = list_checkpoints(folder)
    if not saved:
        return FIRST_LINEAGE
    if step >= saved[-1].step:
        return saved[-1].lineage
    earlier = [each for each in saved if each.step < step and each.is_ancestor_of(saved[-1])]
    lineage = earlier[-1].lineage if earlier else ()
    begin = earlier[-1].step if earlier else 0
    return (*lineage, (_new_branch(saved), begin))


def checkpoint_info(folder: Path, required_file: str = WEIGHTS) -> CheckpointInfo | None:
    """Read and return the lineage, step, time of saving and score of a checkpoint.

    Returns None without weights or without the file ``required_file``.
    """
    try:
        weights, required = ((folder / name).stat() for name in (WEIGHTS, required_file))
    except (FileNotFoundError, NotADirectoryError):
        return None
    step, lineage, saved, score = _read_records(folder, weights.st_mtime_ns, weights.st_ino)
    return CheckpointInfo(folder, lineage, step, saved or required.st_mtime_ns, score)


def score_of(folder: Path) -> float | None:
    """Return the score of a checkpoint's policy, or None without one."""
    checkpoint = checkpoint_info(folder)
    return checkpoint.score if checkpoint else None


def saved_time(folder: Path) -> int:
    """Return when a checkpoint was saved, in nanoseconds since 1970, or 0 if it doesn't exist."""
    checkpoint = checkpoint_info(folder)
    return checkpoint.saved if checkpoint else 0


@lru_cache(100_000)  # each save reads the records of all checkpoints of the run
def _read_records(folder: Path, *_file_identity: int) -> tuple[int, Lineage, int, float | None]:
    """Return a checkpoint's step, lineage, time of saving (0 if unknown) and score, and cache them.

    Damage is ignored here and reported on loading.

    Args:
        folder: Checkpoint folder.
        _file_identity: Time and inode of the weights: if they change, the cache isn't used.
    """
    metadata = {**_read_metadata(folder / WEIGHTS), **_read_metadata(folder / STATE)}
    values = _parse_json(metadata.get("numbers"))
    step = _parse_json(metadata.get("step"))
    if not isinstance(step, int) and CHECKPOINT_NAME.fullmatch(folder.name):
        step = int(folder.name)
    if not isinstance(step, int) and isinstance(values, dict):
        step = values.get("global_step")  # older versions named folders differently
    saved = _parse_json(metadata.get("saved"))
    score = _parse_json(metadata.get("score"))
    return (
        step if isinstance(step, int) else 0,
        _parse_lineage(_parse_json(metadata.get("line"))),
        saved if isinstance(saved, int) else 0,
        score if isinstance(score, int | float) and math.isfinite(score) else None,
    )


def _parse_lineage(pairs: Any) -> Lineage:
    """Return a checkpoint's lineage from JSON values; invalid values give the first branch."""
    try:
        lineage = tuple((int(branch), int(begin)) for branch, begin in pairs)
    except (TypeError, ValueError, OverflowError):
        return FIRST_LINEAGE
    return lineage or FIRST_LINEAGE


def _read_metadata(path: Path) -> dict[str, str]:
    try:
        return read_tensor_header(path).metadata
    except (UserError, OSError):
        return {}


def _parse_json(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def _new_branch(infos: list[CheckpointInfo]) -> int:
    """Return a new branch number, which none of the run's checkpoints uses."""
    return 1 + max(branch for info in infos for branch, _ in info.lineage)
