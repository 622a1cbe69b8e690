"""A checkpoint's files: written together, and read back."""

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
from puffer_mlx.checkpoint.folder import CONFIG, STATE, WEIGHTS, Checkpoint, State
from puffer_mlx.checkpoint.weight_files import fit, save_safetensors, weights_in
from puffer_mlx.config import Config, load_saved, write_ini
from puffer_mlx.config.trust import Allowed
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import publish_folder, reading


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
    about = config, vec.spec, trainer.policy, trainer.weights, trainer.state(), score
    return write_weights(run_folder, step, *about, gathered_statistics(vec))


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
