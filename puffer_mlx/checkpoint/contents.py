"""A checkpoint's files: written together, read back; and which of a run's checkpoints stay.

Those are the newest, and the one with the best score. Where the run is evaluated while it trains,
an evaluation's score is that of the checkpoint whose weights were evaluated; the others have none.
Else a checkpoint's is what training told since the one before.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.checkpoint import branches, tensor_files
from puffer_mlx.checkpoint.branches import Line
from puffer_mlx.checkpoint.environment_statistics import (
    MEMORY,
    gathered_statistics,
    read_statistics,
    require_statistics,
    write_statistics,
)
from puffer_mlx.checkpoint.flat_files import bin_fault, save_bin
from puffer_mlx.checkpoint.folder import BEST, CONFIG, STATE, WEIGHTS, Checkpoint, State
from puffer_mlx.checkpoint.weight_files import fit, save_safetensors, weights_in
from puffer_mlx.config import Config, load_saved, write_ini
from puffer_mlx.config.trust import Allowed
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import publish_folder, publish_link, reading, remove_folder
from puffer_mlx.tracking.scores import SCORE


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
    require_statistics(config, spec, memory or {})
    folder = run_folder / f"{step:016d}"
    score = score if score is not None and math.isfinite(score) else None  # JSON has no NaN
    metadata = {"puffer_mlx": "1", "spec": spec.to_json(), "score": json.dumps(score)}
    metadata["step"] = str(step)
    record = branches.record(branches.line_to(run_folder, step) if line is None else line)
    if state is None:
        metadata |= record  # else it's the state's: weights stay the same for the same training
    with publish_folder(folder) as temporary:
        write_ini(config, temporary / CONFIG)
        save_safetensors(weights, temporary / WEIGHTS, metadata, bounds=spec.action.bounds)
        if bin_fault(policy) is None:
            save_bin(policy, weights, temporary / "weights.bin")
        if memory:
            write_statistics(memory, temporary / MEMORY)
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
    policy, weights, state = trainer.policy, trainer.weights, trainer.state()
    memory = gathered_statistics(vec)
    return write_weights(run_folder, step, config, vec.spec, policy, weights, state, score, memory)


def load(
    folder: Path,
    allow_code: Allowed = False,
    policy_of: Callable[[EnvSpec, Config], Policy] = configured_policy,
) -> Checkpoint:
    """Read a checkpoint; its environment need not be there.

    Args:
        folder: the checkpoint's.
        allow_code: import what its configuration names, whatever it is, or what is named here;
            else only what the person named before on this machine (``puffer_mlx.config.trust``).
        policy_of: of an environment's spec and the configuration: what the weights are of.

    Raises:
        UserError: it isn't a checkpoint, is damaged, or names code that nobody allowed.
    """
    path = folder / CONFIG
    with reading(folder):
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
    weights = fit(path, weights_in(path, tensors), policy.init(mx.random.key(0)))
    label = branches.label(folder)
    step = label.step if label else 0
    return Checkpoint(folder, config, spec, policy, weights, step, read_statistics(folder))


def encoder_as_trained(config: Config, saved: EnvSpec, spec: EnvSpec) -> Config:
    """A run's configuration, whose encoder ``auto`` goes on being the one that it began with.

    Args:
        config: of the run that goes on.
        saved: its checkpoint's; an older one knows of no images among other parts.
        spec: its environments'.
    """
    if config.torch.encoder != "auto" or saved.image_parts == spec.image_parts:
        return config
    return replace(config, torch=replace(config.torch, encoder="DefaultEncoder"))


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


# ---- which checkpoints stay ---------------------------------------------------------------------


class CheckpointManager:
    """Saves a run's checkpoints, and keeps the newest and the best.

    Args:
        folder: the run's.
        config: its configuration; ``[sweep] metric`` and ``goal`` say what is best.
        resumed: the checkpoint that the run goes on from; the newest there is if None.

    Raises:
        UserError: there is no such checkpoint, or ``best`` in the folder is no link.
    """

    def __init__(self, folder: Path, config: Config, resumed: Path | None = None) -> None:
        best = folder / BEST
        if best.is_dir() and not best.is_symlink():
            copied = branches.label(best)
            step = copied.step if copied else 0
            raise UserError(
                f"{best} is a folder, expected a link to a checkpoint beside it",
                f"a copy that followed the link made it; remove it, or rename it to {step:016d}",
            )
        self.folder, self.config = folder, config
        self._line = branches.line_from(folder, resumed) if resumed else None
        self._metric, self._sign = config.metric, config.sign
        self._evaluation = config.evaluation_metric if config.base.eval_interval else ""
        self._sum = self._episodes = 0.0
        self._evaluated: tuple[float, float | None] = 0, None  # after so many steps, and its score

    def observe(self, logs: dict[str, float]) -> None:
        """Add an epoch's record to the score of the next checkpoint.

        That is the metric's mean since the last checkpoint; the mean over the last 100 episodes for
        environments in Python; with ``base.eval_interval`` the score of the evaluation after this
        epoch, if there is one and evaluations report the metric.
        """
        if self._evaluation:
            self._evaluated = logs["agent_steps"], logs.get(self._evaluation)
        elif self._metric == "env/score" and SCORE in logs:
            self._sum, self._episodes = logs[SCORE], 1.0
        elif self._metric in logs:
            episodes = logs.get("env/n", 1.0)  # a rating is told in epochs without any, too
            self._sum += logs[self._metric] * episodes
            self._episodes += episodes

    @property
    def improved(self) -> bool:
        """Whether the last record's evaluation is better than those of all checkpoints before."""
        step, score = self._evaluated
        if score is None or not math.isfinite(score):
            return False
        line = self._line or branches.line_to(self.folder, int(step))
        now = branches.Label(self.folder, line, int(step), 0, score)
        before = (one.score for one in branches.checkpoints(self.folder) if one.led_to(now))
        return all(self._sign * (score - old) > 0 for old in before if old is not None)

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
        if self._evaluation:
            score = self._evaluated[1] if self._evaluated[0] == step else None
        self._sum = self._episodes = 0.0
        if self._line is None:
            self._line = branches.line_to(self.folder, step)
        folder = write_weights(
            self.folder, step, self.config, spec, policy, weights, state, score, memory, self._line
        )
        self._tidy(folder)
        return folder

    def _tidy(self, newest: Path) -> None:
        """Link the best checkpoint of the trained branch, and remove those that needn't stay."""
        labels, link = branches.checkpoints(self.folder), self.folder / BEST
        scored = [one for one in labels if one.score is not None and one.led_to(labels[-1])]
        if scored:
            best = max(scored, key=lambda one: (self._sign * (one.score or 0), one.step)).folder
            publish_link(link, best.name)
        elif link.is_symlink() and not ((old := branches.label(link)) and old.score is not None):
            link.unlink()  # what it points at has no score, or isn't there
        keep = self.config.base.checkpoint_keep
        for old in labels[:-keep] if keep else []:
            if old.folder != newest and not (link.exists() and old.folder.samefile(link)):
                remove_folder(old.folder)
