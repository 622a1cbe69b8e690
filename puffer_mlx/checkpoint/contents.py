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
    MEMORY,
    current_statistics,
    read_statistics,
    require_statistics,
    write_statistics,
)
from puffer_mlx.checkpoint.flat_files import flat_unsupported_reason, save_bin
from puffer_mlx.checkpoint.folder import BEST, CONFIG, STATE, WEIGHTS, Checkpoint, State
from puffer_mlx.checkpoint.weight_files import check_and_convert, policy_tensors, save_safetensors
from puffer_mlx.config import Config, load_saved, write_ini
from puffer_mlx.config.trust import Allowed
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import publish_folder, publish_link, remove_folder, report_read_errors
from puffer_mlx.tracking.scores import SCORE, score_name


def write_checkpoint(
    run_folder: Path,
    step: int,
    config: Config,
    spec: EnvSpec,
    policy: Policy,
    weights: Any,
    state: State | None = None,
    score: float | None = None,
    statistics: Mapping[str, Any] | None = None,
    line: Lineage | None = None,
) -> Path:
    """Write a checkpoint. Without ``state`` the run can't be resumed from it.

    Args:
        run_folder: Run folder.
        step: Environment steps so far.
        config: Effective configuration.
        spec: Observations and actions of the environment.
        policy: Policy that uses the weights.
        weights: Tree of weights.
        state: Training state; None to write only the weights.
        score: Score of the policy, used to select the best checkpoint.
        statistics: Statistics of the environments (``vec.base.HasNormalizer``).
        line: Lineage; None to derive it from the existing checkpoints.

    Returns:
        Folder of the checkpoint.

    Raises:
        UserError: If writing fails or required statistics are missing. No partial checkpoint
            remains.
    """
    require_statistics(config, spec, statistics or {})
    folder = run_folder / f"{step:016d}"
    score = score if score is not None and math.isfinite(score) else None  # NaN isn't valid JSON
    metadata = {"puffer_mlx": "1", "spec": spec.to_json(), "score": json.dumps(score)}
    metadata["step"] = str(step)
    lineage = branches.lineage_to(run_folder, step) if line is None else line
    record = branches.lineage_metadata(lineage)
    if state is None:
        # With a state, the time goes there, so that equal training gives equal weight files.
        metadata |= record
    with publish_folder(folder) as temporary:
        write_ini(config, temporary / CONFIG)
        save_safetensors(weights, temporary / WEIGHTS, metadata, bounds=spec.action.bounds)
        if flat_unsupported_reason(policy) is None:
            save_bin(policy, weights, temporary / "weights.bin")
        if statistics:
            write_statistics(statistics, temporary / MEMORY)
        if state is not None:
            numbers = {"numbers": json.dumps(state.numbers), **record}
            save_safetensors(state.arrays, temporary / STATE, numbers)
    return folder


def save(run_folder: Path, trainer: Any, score: float | None = None) -> Path:
    """Write a checkpoint from which a ``Trainer`` can resume.

    Returns:
        Folder of the checkpoint.

    Raises:
        UserError: If writing fails or required statistics are missing.
    """
    config = trainer.config
    vec = trainer.vec
    step = trainer.epoch * config.batch_size
    policy, weights, state = trainer.policy, trainer.weights, trainer.state()
    statistics = current_statistics(vec)
    return write_checkpoint(
        run_folder, step, config, vec.spec, policy, weights, state, score, statistics
    )


def load(
    folder: Path,
    allow_code: Allowed = False,
    policy_of: Callable[[EnvSpec, Config], Policy] = configured_policy,
) -> Checkpoint:
    """Read a checkpoint. The environment doesn't have to be installed.

    Args:
        folder: Checkpoint folder.
        allow_code: True to import any code that the configuration names, or the names to allow.
            False allows only code that the user allowed before on this machine
            (``puffer_mlx.config.trust``).
        policy_of: (spec, config) -> policy that uses the weights.

    Raises:
        UserError: If the folder isn't a checkpoint, is damaged, or names code that isn't allowed.
    """
    path = folder / CONFIG
    with report_read_errors(folder):
        if not path.is_file():
            raise UserError(f"{folder} has no {CONFIG}", "name a checkpoint's folder")
    config = load_saved(path, allow_code)
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
    policy = policy_of(spec, config)
    weights = check_and_convert(path, policy_tensors(path, tensors), policy.init(mx.random.key(0)))
    info = branches.checkpoint_info(folder)
    step = info.step if info else 0
    return Checkpoint(folder, config, spec, policy, weights, step, read_statistics(folder))


def encoder_as_trained(config: Config, saved: EnvSpec, spec: EnvSpec) -> Config:
    """Return a configuration in which the encoder ``auto`` selects the encoder of the saved run.

    Older checkpoints don't record image parts; their runs used ``DefaultEncoder``.
    """
    if config.torch.encoder != "auto" or saved.image_parts == spec.image_parts:
        return config
    return replace(config, torch=replace(config.torch, encoder="DefaultEncoder"))


def load_state(folder: Path) -> State:
    """Return the training state, which is needed to resume a run.

    Raises:
        UserError: If the state is missing or damaged.
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
        numbers = json.loads(metadata.get("numbers", ""))
    except (ValueError, RecursionError):
        numbers = None
    if not isinstance(numbers, dict):
        raise UserError(f"{path} can't be read: its numbers are missing", "the file is damaged")
    return State(arrays, numbers)


def recorded(folder: Path) -> mx.array | None:
    """Return observations (T, S, D) recorded before this checkpoint, or None."""
    path = folder / STATE
    with report_read_errors(folder):
        return _read(path)[0].get("recorded") if path.is_file() else None


def _read(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    with report_read_errors(path):
        return tensor_files.read(path)


# ---- which checkpoints stay ---------------------------------------------------------------------


class CheckpointManager:
    """Save the checkpoints of a run; keep the newest and the best.

    Args:
        folder: Run folder.
        config: Configuration; ``[sweep] metric`` and ``goal`` define the best score.
        resumed: Checkpoint folder that the run resumes from; None to append to the newest one.

    Raises:
        UserError: If that checkpoint doesn't exist, or ``best`` isn't a link.
    """

    def __init__(self, folder: Path, config: Config, resumed: Path | None = None) -> None:
        best = folder / BEST
        if best.is_dir() and not best.is_symlink():
            copied = branches.checkpoint_info(best)
            step = copied.step if copied else 0
            raise UserError(
                f"{best} is a folder, expected a link to a checkpoint beside it",
                f"a copy that followed the link made it; remove it, or rename it to {step:016d}",
            )
        self.folder, self.config = folder, config
        self._line = branches.lineage_from(folder, resumed) if resumed else None
        self._metric, self._sign = config.metric, config.sign
        self._evaluation = config.evaluation_metric if config.base.eval_interval else ""
        self._sum = self._episodes = 0.0
        self._evaluated: tuple[float, float | None] = 0, None  # (step, score) evaluated last

    def observe(self, logs: dict[str, float]) -> None:
        """Add the metrics of an epoch to the score of the next checkpoint.

        The score is the mean of the metric since the last checkpoint, or the mean of the last 100
        episodes for Python environments. With ``base.eval_interval`` it is the result of the
        evaluation after this epoch, if that reports the metric.
        """
        name = score_name(logs, self._metric)
        if self._evaluation:
            self._evaluated = logs["agent_steps"], logs.get(self._evaluation)
        elif name == SCORE:
            self._sum = logs[SCORE]
            self._episodes = 1.0
        elif name:
            episodes = logs.get("env/n", 1.0)  # a rating is also reported without finished episodes
            self._sum += logs[name] * episodes
            self._episodes += episodes

    @property
    def improved(self) -> bool:
        """True if the last evaluation is better than all earlier scores of the lineage."""
        step, score = self._evaluated
        if score is None or not math.isfinite(score):
            return False
        line = self._line or branches.lineage_to(self.folder, int(step))
        now = branches.CheckpointInfo(self.folder, line, int(step), 0, score)
        before = (one.score for one in branches.checkpoints(self.folder) if one.is_ancestor_of(now))
        return all(self._sign * (score - old) > 0 for old in before if old is not None)

    def save(
        self,
        step: int,
        spec: EnvSpec,
        policy: Policy,
        weights: Any,
        state: State | None,
        statistics: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a checkpoint with ``write_checkpoint``, then remove checkpoints that aren't kept.

        Raises:
            UserError: If writing fails. Existing checkpoints remain.
        """
        score = self._sum / self._episodes if self._episodes else None
        if self._evaluation:
            score = self._evaluated[1] if self._evaluated[0] == step else None
        self._sum = self._episodes = 0.0
        if self._line is None:
            self._line = branches.lineage_to(self.folder, step)
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
            self._line,
        )
        self._tidy(folder)
        return folder

    def _tidy(self, newest: Path) -> None:
        """Link the best checkpoint of the lineage, and remove checkpoints that aren't kept."""
        labels = branches.checkpoints(self.folder)
        link = self.folder / BEST
        scored = [one for one in labels if one.score is not None and one.is_ancestor_of(labels[-1])]
        if scored:
            best = max(scored, key=lambda one: (self._sign * (one.score or 0), one.step)).folder
            publish_link(link, best.name)
        elif link.is_symlink():
            link.unlink()  # its target is abandoned, has no score or doesn't exist
        keep = self.config.base.checkpoint_keep
        for old in labels[:-keep] if keep else []:
            if old.folder != newest and not (link.exists() and old.folder.samefile(link)):
                remove_folder(old.folder)
