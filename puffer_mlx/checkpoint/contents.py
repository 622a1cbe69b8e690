"""Write and read checkpoints, and decide which ones of a run to keep.

The newest checkpoints and the one with the best score are kept. With evaluations during training,
only a checkpoint whose weights were evaluated has a score. Without them, the score is the training
metric since the previous checkpoint.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.checkpoint import branches, tensor_files
from puffer_mlx.checkpoint.branches import Lineage
from puffer_mlx.checkpoint.environment_statistics import (
    STATISTICS_FILE,
    current_statistics,
    read_statistics,
    require_statistics,
    write_statistics,
)
from puffer_mlx.checkpoint.flat_files import flat_unsupported_reason, save_bin
from puffer_mlx.checkpoint.folder import BEST, CONFIG, STATE, WEIGHTS, Checkpoint, SavedState
from puffer_mlx.checkpoint.weight_files import check_and_convert, policy_tensors, save_safetensors
from puffer_mlx.config import Config, load_saved, write_ini
from puffer_mlx.config.trust import Allowed
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import publish_folder, publish_link, remove_folder, report_read_errors
from puffer_mlx.tracking.scores import MEAN_SCORE, score_name


def write_checkpoint(
    run_folder: Path,
    step: int,
    config: Config,
    spec: EnvSpec,
    policy: Policy,
    weights: Any,
    state: SavedState | None = None,
    score: float | None = None,
    statistics: Mapping[str, Any] | None = None,
    lineage: Lineage | None = None,
) -> Path:
    """Write a checkpoint folder: configuration, weights and statistics, and the training state.

    Args:
        run_folder: Run folder.
        step: Environment steps so far.
        config: Effective configuration.
        spec: Observations and actions of the environment.
        policy: Policy that uses the weights.
        weights: Tree of weights.
        state: Training state; None to write only weights, from which a run can't be resumed.
        score: Score of the policy, used to select the best checkpoint.
        statistics: Statistics of the environments (``vec.base.HasNormalizer``).
        lineage: Lineage; None to derive it from the existing checkpoints.

    Returns:
        Folder of the checkpoint.

    Raises:
        UserError: Writing fails or required statistics are missing. No partial checkpoint remains.
    """
    require_statistics(config, spec, statistics or {})
    folder = run_folder / f"{step:016d}"
    score = score if score is not None and math.isfinite(score) else None  # NaN isn't valid JSON
    metadata = {"puffer_mlx": "1", "spec": spec.to_json(), "score": json.dumps(score)}
    metadata["step"] = str(step)
    lineage = branches.lineage_at(run_folder, step) if lineage is None else lineage
    record = branches.lineage_metadata(lineage)
    if state is None:  # else the state file records the time, and equal runs write equal weights
        metadata |= record
    with publish_folder(folder) as temporary:
        write_ini(config, temporary / CONFIG)
        save_safetensors(weights, temporary / WEIGHTS, metadata, bounds=spec.action.bounds)
        if flat_unsupported_reason(policy) is None:
            save_bin(policy, weights, temporary / "weights.bin")
        if statistics:
            write_statistics(statistics, temporary / STATISTICS_FILE)
        if state is not None:
            state_metadata = {"numbers": json.dumps(state.values), **record}
            save_safetensors(state.arrays, temporary / STATE, state_metadata)
    return folder


def save(run_folder: Path, trainer: Any, score: float | None = None) -> Path:
    """Write a checkpoint of a trainer, from which its run can be resumed, and keep all others.

    ``CheckpointManager.save`` also removes old checkpoints.

    Args:
        run_folder: Run folder.
        trainer: ``training.Trainer`` between two epochs.
        score: Score of the policy, used to select the best checkpoint.

    Returns:
        Folder of the checkpoint.

    Raises:
        UserError: Writing fails or required statistics are missing.
    """
    config = trainer.config
    vec = trainer.vec
    step = trainer.epoch * config.batch_size
    policy = trainer.policy
    weights = trainer.weights
    state = trainer.state()
    statistics = current_statistics(vec)
    return write_checkpoint(
        run_folder, step, config, vec.spec, policy, weights, state, score, statistics
    )


def load(
    folder: Path,
    allow_code: Allowed = False,
    policy_of: Callable[[EnvSpec, Config], Policy] = configured_policy,
) -> Checkpoint:
    """Read a checkpoint: configuration, policy, weights and statistics.

    The environment doesn't have to be installed.

    Args:
        folder: Checkpoint folder.
        allow_code: True to import any code that the configuration names, or the names to allow
            (``puffer_mlx.config.trust``).
        policy_of: Creates the policy that uses the weights, from the environment's spec and the
            configuration.

    Raises:
        UserError: The folder isn't a checkpoint, is damaged, or names code that isn't allowed.
    """
    path = folder / CONFIG
    with report_read_errors(folder):
        if not path.is_file():
            raise UserError(f"{folder} has no {CONFIG}", "name a checkpoint folder")
    config = load_saved(path, allow_code)
    path = folder / WEIGHTS
    tensors, metadata = _read(path)
    if "spec" not in metadata:
        raise UserError(f"{path} doesn't describe its environment", "import it first")
    try:
        spec = EnvSpec.from_json(metadata["spec"])
    except ValueError as error:
        raise UserError(
            f"{path} can't be read: its description of the environment is invalid ({error})",
            "the file is damaged",
        ) from None
    policy = policy_of(spec, config)
    weights = check_and_convert(path, policy_tensors(path, tensors), policy.init(mx.random.key(0)))
    info = branches.checkpoint_info(folder)
    step = info.step if info else 0
    return Checkpoint(folder, config, spec, policy, weights, step, read_statistics(folder))


def encoder_as_trained(config: Config, saved: EnvSpec, spec: EnvSpec) -> Config:
    """Return a saved run's configuration with the encoder that ``auto`` meant in that run.

    Older checkpoints don't record which observations are images, and their runs used
    ``DefaultEncoder``. Now ``auto`` could mean an encoder of images.

    Args:
        config: Configuration of the saved run.
        saved: Observations and actions that the checkpoint records.
        spec: Observations and actions of the environment now.
    """
    if config.torch.encoder != "auto" or saved.image_parts == spec.image_parts:
        return config
    return replace(config, torch=replace(config.torch, encoder="DefaultEncoder"))


def load_state(folder: Path) -> SavedState:
    """Read the training state in a checkpoint, which is needed to resume its run.

    Raises:
        UserError: The state is missing or damaged.
    """
    path = folder / STATE
    with report_read_errors(folder):
        if not path.is_file():
            raise UserError(
                f"{folder} has no {STATE}: it holds only weights",
                f"start a new run from them: --load-model-path {folder}",
            )
    arrays, metadata = _read(path)
    try:
        values = json.loads(metadata.get("numbers", ""))
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise UserError(f"{path} can't be read: its counters are missing", "the file is damaged")
    return SavedState(arrays, values)


def recorded(folder: Path) -> mx.array | None:
    """Return the observations of training that a checkpoint contains; None without any.

    The array (T, S, D) has T steps of S segments, with D values each.
    """
    path = folder / STATE
    with report_read_errors(folder):
        return _read(path)[0].get("recorded") if path.is_file() else None


def _read(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    with report_read_errors(path):
        return tensor_files.read_tensors(path)


# ---- which checkpoints are kept -----------------------------------------------------------------


class CheckpointManager:
    """Save the checkpoints of a run, and remove all but the newest ones and the best.

    Args:
        folder: Run folder.
        config: Configuration; ``[sweep] metric`` and ``goal`` define the best score.
        resumed: Checkpoint folder that the run resumes from; None for the newest one, if any.

    Raises:
        UserError: ``resumed`` doesn't exist, or ``best`` isn't a link.
    """

    def __init__(self, folder: Path, config: Config, resumed: Path | None = None) -> None:
        best = folder / BEST
        if best.is_dir() and not best.is_symlink():
            copied = branches.checkpoint_info(best)
            step = copied.step if copied else 0
            raise UserError(
                f"{best} is a folder, expected a link to a checkpoint beside it",
                "the run was probably copied with links followed; remove this folder, or rename it"
                f" to {step:016d}",
            )
        self.folder = folder
        self.config = config
        self._lineage = branches.lineage_after(folder, resumed) if resumed else None
        self._metric = config.metric
        self._goal_sign = config.sign  # 1 if larger scores are better, else -1
        self._evaluation_metric = config.evaluation_metric if config.base.eval_interval else ""
        self._score_sum = 0.0  # over the episodes since the previous checkpoint
        self._episodes = 0.0
        self._evaluated: tuple[float, float | None] = 0, None  # step and score of the last one

    def observe(self, logs: dict[str, float]) -> None:
        """Update the score that the next checkpoint will get with the metrics of an epoch.

        With ``base.eval_interval``, the score is that of an evaluation after the checkpoint's last
        epoch. Otherwise it is the mean of the metric since the previous checkpoint, or over the
        last 100 episodes for Python environments.
        """
        name = score_name(logs, self._metric)
        if self._evaluation_metric:
            self._evaluated = logs["agent_steps"], logs.get(self._evaluation_metric)
        elif name == MEAN_SCORE:  # already a mean over the last episodes
            self._score_sum = logs[MEAN_SCORE]
            self._episodes = 1.0
        elif name:
            episodes = logs.get("env/n", 1.0)  # an Elo rating is reported even if no episode ended
            self._score_sum += logs[name] * episodes
            self._episodes += episodes

    @property
    def improved(self) -> bool:
        """True if the last evaluation beats the scores of the checkpoints that led to it."""
        step, score = self._evaluated
        if score is None or not math.isfinite(score):
            return False
        lineage = self._lineage or branches.lineage_at(self.folder, int(step))
        # The checkpoint that would be saved now; only its ancestors' scores are compared.
        now = branches.CheckpointInfo(self.folder, lineage, int(step), 0, score)
        saved = branches.list_checkpoints(self.folder)
        scores = [each.score for each in saved if each.is_ancestor_of(now)]
        return all(self._goal_sign * (score - old) > 0 for old in scores if old is not None)

    def save(
        self,
        step: int,
        spec: EnvSpec,
        policy: Policy,
        weights: Any,
        state: SavedState | None,
        statistics: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a checkpoint of the run, then remove old ones. Returns the new checkpoint's folder.

        Raises:
            UserError: Writing fails. Existing checkpoints remain.
        """
        score = self._score_sum / self._episodes if self._episodes else None
        if self._evaluation_metric:
            score = self._evaluated[1] if self._evaluated[0] == step else None
        self._score_sum = 0.0
        self._episodes = 0.0
        if self._lineage is None:
            self._lineage = branches.lineage_at(self.folder, step)
        folder = write_checkpoint(
            self.folder,
            step,
            self.config,
            spec,
            policy,
            weights,
            state,
            score,
            statistics,
            self._lineage,
        )
        self._remove_old(folder)
        return folder

    def _remove_old(self, newest: Path) -> None:
        """Update the link to the run's best checkpoint, and remove old checkpoints.

        The newest ``base.checkpoint_keep`` checkpoints and the best one remain.
        """
        saved = branches.list_checkpoints(self.folder)
        link = self.folder / BEST
        lineage = [each for each in saved if each.is_ancestor_of(saved[-1])]
        scored = [each for each in lineage if each.score is not None]
        if scored:
            best = max(
                scored, key=lambda each: (self._goal_sign * (each.score or 0), each.step)
            ).folder
            publish_link(link, best.name)
        elif link.is_symlink():
            link.unlink()  # its target is abandoned, has no score or doesn't exist
        count = self.config.base.checkpoint_keep
        older = saved[:-count] if count else []  # 0 keeps all
        for old in older:
            if old.folder != newest and not (link.exists() and old.folder.samefile(link)):
                remove_folder(old.folder)
