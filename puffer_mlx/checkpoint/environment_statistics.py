"""Make environments process observations and actions as a saved policy needs it.

This concerns normalization statistics, action bounds and image channels. A policy trained on
normalized observations needs their statistics (``normalization.py``). So it is never saved without
them, and every environment in which it plays uses them.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint import normalization, rescaling
from puffer_mlx.checkpoint.folder import CONFIG, WEIGHTS
from puffer_mlx.checkpoint.tensor_files import read_tensors
from puffer_mlx.checkpoint.weight_files import save_safetensors
from puffer_mlx.config import Config
from puffer_mlx.config.fit import is_explicit
from puffer_mlx.config.ini_files import ini_file
from puffer_mlx.config.schema import Vec
from puffer_mlx.config.values import BOOLS
from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import relative, report_read_errors
from puffer_mlx.vec.base import HasNormalizer, VecEnv
from puffer_mlx.vec.normalize import shows_normalised

STATISTICS_FILE = "normalization.safetensors"  # file name in a checkpoint; suffix for other files
NORMALIZE_KEY, RESCALE_KEY = "vec.normalize_observations", "vec.rescale_actions"
CHANNELS_KEY = "vec.image_channels"


def read_statistics(path: Path) -> dict[str, Any]:
    """Read a policy's normalization statistics, float64 arrays by name; {} if it has none.

    Args:
        path: Checkpoint folder or weight file. The statistics of a weight file are in the file, or
            in a second file beside it.

    Raises:
        UserError: The statistics are damaged or can't be read.
    """
    with report_read_errors(path):
        if path.suffix == ".safetensors" and path.is_file():
            statistics = normalization.split_statistics(path, read_tensors(path)[0])[1]
            if statistics:
                return statistics
        files = [path / STATISTICS_FILE]
        if not path.is_dir():
            exported = path.with_name(f"{path.name}.{STATISTICS_FILE}")
            files = [exported, path.parent / STATISTICS_FILE]
        for file in files:
            if file.is_file():
                tensors = {
                    normalization.PREFIX + name: w for name, w in read_tensors(file)[0].items()
                }
                return normalization.split_statistics(file, tensors)[1]
        return {}


def write_statistics(statistics: Mapping[str, Any], path: Path) -> None:
    """Write normalization statistics to a separate safetensors file, as float32."""
    statistics = normalization.with_rounding_error(statistics)
    arrays = {name: mx.array(np.asarray(array, np.float32)) for name, array in statistics.items()}
    save_safetensors(arrays, path, {"puffer_mlx": "1"})


def current_statistics(vec: VecEnv) -> dict[str, Any]:
    """Return the normalization statistics of environments; {} if they don't normalize."""
    return vec.statistics() if isinstance(vec, HasNormalizer) else {}


def with_saved_preprocessing(
    config: Config, path: Path, statistics: Mapping[str, Any] | None = None
) -> Config:
    """Return a configuration that processes observations and actions as a saved policy needs it.

    Sets the normalization of observations, the rescaling of actions and the image channels. Keys
    on the command line aren't changed; ``restore_statistics`` and ``check_action_scale`` raise an
    error if their values don't fit the policy.

    Args:
        config: Requested configuration.
        path: Checkpoint folder or weight file of the policy.
        statistics: Normalization statistics of the policy; None reads them.
    """
    settings = config.vec
    if not settings.normalize_observations and not is_explicit(config, NORMALIZE_KEY):
        statistics = read_statistics(path) if statistics is None else statistics
        if normalization.normalises(statistics):
            settings = replace(settings, normalize_observations=True)
    if config.python and not is_explicit(config, RESCALE_KEY):
        rescaled = rescales(path)
        if rescaled is not None and rescaled != settings.rescale_actions:
            settings = replace(settings, rescale_actions=rescaled)
    if config.python and not is_explicit(config, CHANNELS_KEY) and (texts := _saved_settings(path)):
        channels = texts.get(CHANNELS_KEY, Vec().image_channels)
        if channels != settings.image_channels:
            settings = replace(settings, image_channels=channels)
    return config if settings is config.vec else replace(config, vec=settings)


def preprocessing_changes(requested: Config, config: Config, path: Path) -> list[str]:
    """Return a message for each setting that ``with_saved_preprocessing`` has changed.

    Args:
        requested: Configuration before the change.
        config: Configuration after it.
        path: Checkpoint folder or weight file of the policy.
    """
    lines = []
    if config.vec.normalize_observations != requested.vec.normalize_observations:
        lines.append(f"observations are normalised, as in the training of {path}")
    if config.vec.rescale_actions != requested.vec.rescale_actions:
        how = "rescaled to their bounds" if config.vec.rescale_actions else "not rescaled"
        lines.append(f"actions are {how}, as in the training of {path}")
    if config.vec.image_channels != requested.vec.image_channels:
        channels = config.vec.image_channels
        lines.append(f"{CHANNELS_KEY} is {channels}, as in the training of {path}")
    return lines


def rescales(path: Path) -> bool | None:
    """Return True if a saved policy was trained with rescaled actions; None if that is unknown.

    A checkpoint's configuration contains the setting. Other safetensors files contain the bounds
    of rescaled actions.

    Raises:
        UserError: The file is damaged or can't be read.
    """
    with report_read_errors(path):
        if path.suffix == ".safetensors" and path.name != WEIGHTS:  # not in a checkpoint
            return bool(rescaling.split_bounds(path, read_tensors(path)[0])[1])
        if texts := _saved_settings(path):
            return BOOLS.get(texts.get(RESCALE_KEY, "False").lower(), False)
        if path.name == WEIGHTS and path.is_file():  # without its config.ini
            return bool(rescaling.split_bounds(path, read_tensors(path)[0])[1])
    return None


def _saved_settings(path: Path) -> dict[str, str]:
    """Read a checkpoint's config.ini. Returns its values as text, by key; {} without a checkpoint.

    Args:
        path: Checkpoint folder or weight file in it.

    Raises:
        UserError: The configuration can't be read.
    """
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".safetensors" and path.name != WEIGHTS:
        return {}
    with report_read_errors(path):
        if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
            return ini_file(folder / CONFIG).texts
    return {}


def check_action_scale(vec: VecEnv, path: Path) -> None:
    """Raise an error if environments and a saved policy rescale actions differently.

    Args:
        vec: Environments.
        path: Weight file. Only safetensors files are checked.

    Raises:
        UserError: The bounds differ, or only one of the two rescales.
    """
    if path.suffix != ".safetensors" or not path.is_file():
        return
    tensors, _ = read_tensors(path)
    _, trained = rescaling.split_bounds(path, tensors)
    current = vec.spec.action.bounds
    if trained != current:
        trained_text = f"rescaled to {trained}" if trained else "not rescaled"
        current_text = f"rescaled to {current}" if current else "not rescaled"
        raise UserError(
            f"the actions of the policy {relative(path)} are {trained_text},"
            f" but those of {vec.spec.name} are {current_text}",
            f"--vec.rescale-actions {int(bool(trained))}"
            if bool(trained) != bool(current)
            else "name the environment that it was trained for",
        )


def restore_statistics(
    vec: VecEnv, path: Path, frozen: bool = False, statistics: Mapping[str, Any] | None = None
) -> None:
    """Make environments normalize observations with the statistics of a saved policy.

    Args:
        vec: Environments, before their first reset.
        path: Checkpoint folder or weight file.
        frozen: True to stop updating the statistics.
        statistics: Statistics of the policy; None reads them.

    Raises:
        UserError: The environments normalize, but the statistics are missing or don't fit. Or there
            are statistics, but the environments don't normalize.
    """
    saved = dict(read_statistics(path) if statistics is None else statistics)
    if isinstance(vec, HasNormalizer):
        if normalization.normalises(vec.statistics()) and not normalization.normalises(saved):
            raise UserError(
                f"{vec.spec.name} normalises observations, but the statistics are missing:"
                f" {relative(path)} has none",
                "--vec.normalize-observations 0 if the policy was trained without;"
                " else name its checkpoint's folder",
            )
        vec.restore_statistics(saved, frozen)
    elif normalization.normalises(saved):
        raise UserError(
            f"{relative(path)} is a policy for normalised observations,"
            f" but those of {vec.spec.name} aren't normalised",
            "--vec.normalize-observations 1",
        )


def copy_statistics(trained: VecEnv, vec: VecEnv) -> None:
    """Copy the normalization statistics of a trainer's environments to other environments.

    Args:
        trained: Environments of the trainer.
        vec: Environments with the same configuration, before their first reset. They stop updating
            the statistics.
    """
    if isinstance(vec, HasNormalizer):
        vec.restore_statistics(current_statistics(trained), frozen=True)


def require_statistics(config: Config, spec: EnvSpec, statistics: Mapping[str, Any]) -> None:
    """Raise an error if a policy would be saved without the normalization statistics it needs.

    Raises:
        UserError: The configuration normalizes observations, but the statistics are missing.
    """
    if shows_normalised(config, spec) and not normalization.normalises(statistics):
        raise UserError(
            f"the statistics that normalise observations are missing ({NORMALIZE_KEY})",
            "checkpoint.save(run, trainer) adds them; or pass statistics=environments.statistics()",
        )
