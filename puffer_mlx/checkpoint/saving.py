"""Checkpoints of a run: folders that hold everything needed to go on exactly.

    checkpoint_dir/ENV/RUN_ID/
        config.ini                   the effective configuration
        0000000000262144/            after that many steps
            config.ini               the same
            weights.safetensors      the policy; metadata: the environment's spec, the score, steps
            weights.bin              the same as upstream's flat file, where that can express it
            normalization.safetensors    statistics of observations and rewards, if there are any
            state.safetensors        optimizer, random keys, recurrent states, environments, ...
        best                         a link to the one with the best score of the trained branch

A checkpoint is written after every ``checkpoint_interval``-th epoch (counted from 0) and after the
last one, upstream's rhythm; the newest ``checkpoint_keep`` and the best are kept. What was trained
after a checkpoint that the run went on from later is abandoned (``branches``): it is removed first,
and isn't the newest or the best. Folders are published by rename: a killed run leaves whole
checkpoints, and perhaps a name that begins with a dot.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx import config as configuration
from puffer_mlx.checkpoint import branches, normalization, tensor_files
from puffer_mlx.checkpoint.branches import STATE, WEIGHTS, Line
from puffer_mlx.checkpoint.environment_statistics import MEMORY, learned, memory, refuse_to_forget
from puffer_mlx.checkpoint.weight_files import bin_fault, fit, save_bin, save_safetensors
from puffer_mlx.config import Config, write_ini
from puffer_mlx.config.trust import Allowed
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import publish_folder, publish_link, reading, remove_folder
from puffer_mlx.tracking.scores import SCORE

WHICH = "name a run's folder, a checkpoint's folder or latest"
CONFIG, BEST = "config.ini", "best"


class State(NamedTuple):
    """What a run needs besides its weights to go on.

    Args:
        arrays: by dotted name.
        numbers: counters and what else is JSON.
    """

    arrays: dict[str, mx.array]
    numbers: dict[str, Any]


class Checkpoint(NamedTuple):
    """A checkpoint's contents, without the state.

    ``memory`` is what its environments had learned (``vec.base.Remembers``): the statistics that
    the policy's observations are normalised by, if they are.
    """

    folder: Path
    config: Config
    spec: EnvSpec
    policy: Policy
    weights: Any
    step: int
    memory: normalization.Memory


def run_folder(config: Config, run_id: str) -> Path:
    """Where a run's checkpoints are."""
    return Path(config.base.checkpoint_dir) / config.slug / run_id


def prepare(config: Config, run_id: str) -> Path:
    """Make a run's folder and write its configuration; an unwritable disk shows before training.

    Raises:
        UserError: the folder can't be written.
    """
    folder = run_folder(config, run_id)
    write_ini(config, folder / CONFIG)
    return folder


def is_due(config: Config, epoch: int) -> bool:
    """Whether upstream saves after this epoch (counted from 0)."""
    return epoch % config.base.checkpoint_interval == 0 or epoch == config.epochs - 1


# ---- writing -------------------------------------------------------------------------------------


def write_weights(
    run_folder: Path,
    step: int,
    config: Config,
    spec: EnvSpec,
    policy: Policy,
    weights: Any,
    state: State | None = None,
    score: float | None = None,
    memory: Mapping[str, Any] | None = None,
    line: Line | None = None,
) -> Path:
    """Write a checkpoint, with or without what a run needs to go on.

    Args:
        run_folder: the run's folder.
        step: environment steps so far.
        config: the effective configuration.
        spec: what the policy's environment shows and takes.
        policy: which policy the weights are of.
        weights: its weights.
        state: from a trainer; None for weights from elsewhere.
        score: of the policy, for telling the best.
        memory: what the environments have learned (``vec.base.Remembers``). ``save`` asks a
            trainer's.
        line: the branches that led to it; those of the checkpoint before if None.

    Returns:
        The checkpoint's folder.

    Raises:
        UserError: it can't be written, or lacks the statistics without which the policy is another
            one; nothing half-written is left.
    """
    refuse_to_forget(config, spec, memory or {})
    folder = run_folder / f"{step:016d}"
    score = score if score is not None and math.isfinite(score) else None  # JSON has no NaN
    metadata = {"puffer_mlx": "1", "spec": spec.to_json(), "score": json.dumps(score)}
    metadata["step"] = str(step)
    record = branches.record(branches.line_to(run_folder, step) if line is None else line)
    if state is None:
        metadata |= record  # else it's the state's: weights stay the same for the same training
    with publish_folder(folder) as temporary:
        write_ini(config, temporary / CONFIG)
        save_safetensors(weights, temporary / WEIGHTS, metadata)
        if bin_fault(policy) is None:
            save_bin(policy, weights, temporary / "weights.bin")
        if memory:
            arrays = {name: mx.array(array, mx.float32) for name, array in memory.items()}
            save_safetensors(arrays, temporary / MEMORY, {"puffer_mlx": "1"})
        if state is not None:
            numbers = {"numbers": json.dumps(state.numbers), **record}
            save_safetensors(state.arrays, temporary / STATE, numbers)
    return folder


def save(run_folder: Path, trainer: Any, score: float | None = None) -> Path:
    """Write a checkpoint of all that a ``Trainer`` has learned, and what it needs to go on.

    Returns and raises as ``write_weights``.
    """
    config, vec = trainer.config, trainer.vec
    step = trainer.epoch * config.batch_size
    about = config, vec.spec, trainer.policy, trainer.weights, trainer.state(), score
    return write_weights(run_folder, step, *about, learned(vec))


class CheckpointManager:
    """Saves a run's checkpoints, and keeps the newest and the best.

    Args:
        folder: the run's.
        config: its configuration; ``[sweep] metric`` and ``goal`` say what is best.
        resumed: the checkpoint that the run goes on from; the newest there is if None.

    Raises:
        UserError: there is no such checkpoint.
    """

    def __init__(self, folder: Path, config: Config, resumed: Path | None = None) -> None:
        self.folder, self.config = folder, config
        self._line = branches.line_from(folder, resumed) if resumed else None
        sweep = config.sweep.get("sweep", {})
        self._metric = f"env/{sweep.get('metric', 'score')}"
        self._sign = -1 if sweep.get("goal", "maximize") == "minimize" else 1
        self._sum = self._episodes = 0.0

    def observe(self, logs: dict[str, float]) -> None:
        """Take an epoch's record: a checkpoint's score is the mean since the one before.

        Of Python's environments it is the mean over the last 100 episodes, which people read.
        """
        if self._metric == "env/score" and SCORE in logs:
            self._sum, self._episodes = logs[SCORE], 1.0
        elif self._metric in logs:
            self._sum += logs[self._metric] * logs["env/n"]
            self._episodes += logs["env/n"]

    def save(
        self,
        step: int,
        spec: EnvSpec,
        policy: Policy,
        weights: Any,
        state: State | None,
        memory: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a checkpoint (``write_weights``), and remove those that needn't be kept.

        Raises:
            UserError: it can't be written; those there were are still there.
        """
        score = self._sum / self._episodes if self._episodes else None
        self._sum = self._episodes = 0.0
        if self._line is None:
            self._line = branches.line_to(self.folder, step)
        about = self.config, spec, policy, weights, state, score, memory, self._line
        made = write_weights(self.folder, step, *about)
        self._tidy(made)
        return made

    def _tidy(self, made: Path) -> None:
        """Point at the best of the trained branch, and remove what needn't be kept."""
        labels, link = branches.checkpoints(self.folder), self.folder / BEST
        scored = [one for one in labels if one.score is not None and one.led_to(labels[-1])]
        if scored:
            best = max(scored, key=lambda one: (self._sign * (one.score or 0), one.step)).folder
            publish_link(link, best.name)
        elif link.is_symlink() and not ((old := branches.label(link)) and old.score is not None):
            link.unlink()  # what it points at has no score, or isn't there
        keep = self.config.base.checkpoint_keep
        for old in labels[:-keep] if keep else []:
            if old.folder != made and not (link.exists() and old.folder.samefile(link)):
                remove_folder(old.folder)


# ---- finding -------------------------------------------------------------------------------------


def checkpoints(folder: Path, holding: str = WEIGHTS) -> list[Path]:
    """A run's checkpoints that hold a file, the newest last (``branches.checkpoints``)."""
    return [one.folder for one in branches.checkpoints(folder, holding)]


def find(path: str, config: Config, holding: str = WEIGHTS) -> Path:
    """The checkpoint that ``latest``, a RUN_ID, a run's folder or a checkpoint's folder names.

    ``latest`` is the newest checkpoint of the newest run of this environment; of a run it is the
    newest one, too (``branches``: the most steps of the branch that was trained last).

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
    """As ``find``; a folder that can't be looked at is an OSError."""
    root = Path(config.base.checkpoint_dir) / config.slug
    if path == "latest":
        found = branches.newest(root, holding)
    else:
        candidates = (Path(path), root / path)
        root = next((folder for folder in candidates if folder.is_dir()), Path(path))
        if (root / WEIGHTS).is_file():
            target = root.resolve()
            if not root.is_symlink():
                return target if root.name in ("", "..") else root  # the run's folder is above
            if target.parent != root.parent.resolve():  # ``best`` is a link in it
                message = f"{root} is a link to {target}, out of its folder"
                raise UserError(message, f"name {target}")
            return root.parent / target.name
        found = next(reversed(branches.checkpoints(root, holding)), None)
    if found is None:
        hint = f"train first, or {WHICH}"
        runs = sorted(run.name for run in Path(config.base.checkpoint_dir).glob("*/*"))
        if runs and path != "latest" and not root.is_dir():
            hint = f"runs there are: {', '.join(runs[-3:])}"
        raise UserError(f"there is no checkpoint in {root}", hint)
    return found.folder


def find_weights(path: str, config: Config) -> Path:
    """The file that ``--load-model-path`` names: a file, or what ``find`` finds.

    Raises:
        UserError: there is none.
    """
    with reading(path):
        if Path(path).suffix and not Path(path).is_dir():
            return Path(path)
    return find(path, config) / WEIGHTS


# ---- reading -------------------------------------------------------------------------------------


def load(folder: Path, allow_code: Allowed = False) -> Checkpoint:
    """Read a checkpoint; its environment need not be there.

    Args:
        folder: the checkpoint's.
        allow_code: import what its configuration names, whatever it is, or what is named here;
            else only what the person named before on this machine (``puffer_mlx.config.trust``).

    Raises:
        UserError: it isn't a checkpoint, is damaged, or names code that nobody allowed.
    """
    path = folder / CONFIG
    with reading(folder):
        if not path.is_file():
            raise UserError(f"{folder} has no {CONFIG}", "name a checkpoint's folder")
    config = configuration.load_saved(path, allow_code)
    path = folder / WEIGHTS
    tensors, metadata = _read(path)
    if "spec" not in metadata:
        raise UserError(f"{path} doesn't say what it is for", "import it first")
    try:
        spec = EnvSpec.from_json(metadata["spec"])
    except ValueError as error:
        raise UserError(
            f"{path} can't be read: what it says of its environment makes no sense ({error})",
            "the file is damaged",
        ) from None
    policy = configured_policy(spec, config)
    weights = fit(path, tensors, policy.init(mx.random.key(0)))
    label = branches.label(folder)
    step = label.step if label else 0
    return Checkpoint(folder, config, spec, policy, weights, step, memory(folder))


def load_state(folder: Path) -> State:
    """What a run needs to go on.

    Raises:
        UserError: the checkpoint has none, or it is damaged.
    """
    path = folder / STATE
    with reading(folder):
        if not path.is_file():
            raise UserError(
                f"{folder} has no {STATE}: it holds only weights",
                f"start a new run from them: --load-model-path {folder}",
            )
    arrays, metadata = _read(path)
    try:
        numbers = json.loads(metadata.get("numbers", ""))
    except (ValueError, RecursionError):
        numbers = None
    if not isinstance(numbers, dict):
        raise UserError(f"{path} can't be read: its numbers are missing", "the file is damaged")
    return State(arrays, numbers)


def recorded(folder: Path) -> mx.array | None:
    """Observations (T, S, D) that the run saw before this checkpoint, or None."""
    path = folder / STATE
    with reading(folder):
        return _read(path)[0].get("recorded") if path.is_file() else None


def _read(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    with reading(path):
        return tensor_files.read(path)
