"""Writing a checkpoint: all of a run, or weights alone."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from puffer_mlx.checkpoint import branches
from puffer_mlx.checkpoint.branches import Line
from puffer_mlx.checkpoint.environment_statistics import (
    MEMORY,
    gathered_statistics,
    require_statistics,
    write_statistics,
)
from puffer_mlx.checkpoint.flat_files import bin_fault, save_bin
from puffer_mlx.checkpoint.folder import CONFIG, STATE, WEIGHTS, State
from puffer_mlx.checkpoint.weight_files import save_safetensors
from puffer_mlx.config import Config, write_ini
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import publish_folder


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
