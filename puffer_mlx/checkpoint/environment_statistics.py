"""Move normalization statistics and action bounds between files and environments.

A policy trained on normalized observations is wrong without its statistics (``normalization.py``).
So it is never saved without them, and every environment that it plays in uses them.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint import normalization, rescaling
from puffer_mlx.checkpoint.folder import CONFIG, WEIGHTS
from puffer_mlx.checkpoint.tensor_files import read
from puffer_mlx.checkpoint.weight_files import save_safetensors
from puffer_mlx.config import Config
from puffer_mlx.config.fit import typed
from puffer_mlx.config.ini_files import ini_file
from puffer_mlx.config.schema import Vec
from puffer_mlx.config.values import BOOLS
from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import reading, relative
from puffer_mlx.vec.base import HasNormalizer, VecEnv
from puffer_mlx.vec.normalize import shows_normalised

MEMORY = "normalization.safetensors"  # file name in a checkpoint; suffix for other files
KEY, RESCALE = "vec.normalize_observations", "vec.rescale_actions"
CHANNELS = "vec.image_channels"


def read_statistics(path: Path) -> dict[str, Any]:
    """Return the statistics of a policy as float64 arrays by name; {} if it has no statistics.

    Args:
        path: Checkpoint folder or weight file. The statistics of a file are in the file, or in a
            second file next to it.

    Raises:
        UserError: If the statistics are damaged or can't be read.
    """
    with reading(path):
        holds = path.suffix == ".safetensors" and path.is_file()
        if holds and (inside := normalization.split_statistics(path, read(path)[0])[1]):
            return inside
        beside = [path / MEMORY, path.with_name(f"{path.name}.{MEMORY}"), path.parent / MEMORY]
        for file in beside[:1] if path.is_dir() else beside[1:]:
            if file.is_file():
                tensors = {normalization.PREFIX + name: w for name, w in read(file)[0].items()}
                return normalization.split_statistics(file, tensors)[1]
        return {}


def write_statistics(statistics: Mapping[str, Any], path: Path) -> None:
    """Write statistics to a separate file as float32."""
    statistics = normalization.with_rest(statistics)
    arrays = {name: mx.array(np.asarray(array, np.float32)) for name, array in statistics.items()}
    save_safetensors(arrays, path, {"puffer_mlx": "1"})


def current_statistics(vec: VecEnv) -> dict[str, Any]:
    """Return the current statistics of the environments; {} if they record no statistics."""
    return vec.statistics() if isinstance(vec, HasNormalizer) else {}


def with_saved_preprocessing(
    config: Config, path: Path, statistics: Mapping[str, Any] | None = None
) -> Config:
    """Return a configuration with the observation and action settings of a trained policy.

    Sets the normalization of observations, the rescaling of actions and the image channels. Keys
    given on the command line aren't changed; ``restore_statistics`` and ``check_action_scale``
    raise an error if these don't fit the policy.

    Args:
        config: Requested configuration.
        path: Checkpoint folder or weight file of the policy.
        statistics: Statistics of the policy; None reads them.
    """
    settings = config.vec
    if not settings.normalize_observations and not typed(config, KEY):
        statistics = read_statistics(path) if statistics is None else statistics
        if normalization.normalises(statistics):
            settings = replace(settings, normalize_observations=True)
    if config.python and not typed(config, RESCALE):
        rescaled = rescales(path)
        if rescaled is not None and rescaled != settings.rescale_actions:
            settings = replace(settings, rescale_actions=rescaled)
    if config.python and not typed(config, CHANNELS) and (texts := _run_texts(path)):
        channels = texts.get(CHANNELS, Vec().image_channels)
        if channels != settings.image_channels:
            settings = replace(settings, image_channels=channels)
    return config if settings is config.vec else replace(config, vec=settings)


def differences(asked: Config, config: Config, path: Path) -> list[str]:
    """Return a message for each setting that ``with_saved_preprocessing`` changed."""
    lines = []
    if config.vec.normalize_observations != asked.vec.normalize_observations:
        lines.append(f"observations are normalised, as {path} learned to see them")
    if config.vec.rescale_actions != asked.vec.rescale_actions:
        how = "rescaled to their bounds" if config.vec.rescale_actions else "taken as they are"
        lines.append(f"actions are {how}, as {path} learned to put them out")
    if config.vec.image_channels != asked.vec.image_channels:
        lines.append(f"{CHANNELS} is {config.vec.image_channels}, as {path} learned to see images")
    return lines


def rescales(path: Path) -> bool | None:
    """Return True if the policy was trained with rescaled actions, or None when unknown.

    A checkpoint's configuration contains the setting. In other safetensors files, the tensors show
    it.

    Raises:
        UserError: If the file is damaged or can't be read.
    """
    with reading(path):
        if path.suffix == ".safetensors" and path.name != WEIGHTS:
            return bool(rescaling.split_bounds(path, read(path)[0])[1])
        if texts := _run_texts(path):
            return BOOLS.get(texts.get(RESCALE, "False").lower(), False)
        if path.name == WEIGHTS and path.is_file():
            return bool(rescaling.split_bounds(path, read(path)[0])[1])
    return None


def _run_texts(path: Path) -> dict[str, str]:
    """Return the keys of a run's configuration as text; {} if the path isn't in a checkpoint.

    Args:
        path: Checkpoint folder or weight file.

    Raises:
        UserError: If the configuration can't be read.
    """
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".safetensors" and path.name != WEIGHTS:
        return {}
    with reading(path):
        if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
            return ini_file(folder / CONFIG).texts
    return {}


def check_action_scale(vec: VecEnv, path: Path) -> None:
    """Raise an error if environment and policy rescale actions differently.

    Args:
        vec: Environments.
        path: Checkpoint folder or weight file. Only safetensors files are checked.

    Raises:
        UserError: If the bounds differ, or only one of the two rescales.
    """
    if path.suffix != ".safetensors" or not path.is_file():
        return
    learned, taken = rescaling.split_bounds(path, read(path)[0])[1], vec.spec.action.bounds
    if learned != taken:
        ours = f"rescaled to {learned}" if learned else "taken as they are"
        theirs = f"rescaled to {taken}" if taken else "as they are"
        raise UserError(
            f"{relative(path)} is a policy whose actions are {ours},"
            f" and {vec.spec.name} has them {theirs}",
            f"--vec.rescale-actions {int(bool(learned))}"
            if bool(learned) != bool(taken)
            else "name the environment that it was trained for",
        )


def restore_statistics(
    vec: VecEnv, path: Path, frozen: bool = False, statistics: Mapping[str, Any] | None = None
) -> None:
    """Make environments normalize observations with the statistics of a policy.

    Args:
        vec: Environments, before their first reset.
        path: Checkpoint folder or weight file.
        frozen: True to stop updating the statistics.
        statistics: Statistics of the policy; None reads them.

    Raises:
        UserError: If the environments normalize and the statistics are missing or don't fit, or
            if statistics exist and the environments don't normalize.
    """
    known = dict(read_statistics(path) if statistics is None else statistics)
    if isinstance(vec, HasNormalizer):
        if normalization.normalises(vec.statistics()) and not normalization.normalises(known):
            raise UserError(
                f"{vec.spec.name} is to normalise observations, and the statistics are missing:"
                f" {relative(path)} has none",
                "--vec.normalize-observations 0 if the policy learned from them as they are;"
                " else name its checkpoint's folder",
            )
        vec.restore_statistics(known, frozen)
    elif normalization.normalises(known):
        raise UserError(
            f"{relative(path)} is a policy of normalised observations,"
            f" and {vec.spec.name} shows others",
            "--vec.normalize-observations 1",
        )


def copy_statistics(trained: VecEnv, vec: VecEnv) -> None:
    """Copy the current statistics of a trainer's environments to other environments.

    Args:
        trained: Environments of the trainer.
        vec: Environments with the same configuration, before their first reset. They don't update
            the statistics.
    """
    if isinstance(vec, HasNormalizer):
        vec.restore_statistics(current_statistics(trained), frozen=True)


def require_statistics(config: Config, spec: EnvSpec, statistics: Mapping[str, Any]) -> None:
    """Raise an error if a policy would be saved without the statistics that it needs.

    Raises:
        UserError: If the configuration normalizes observations and the statistics are missing.
    """
    if shows_normalised(config, spec) and not normalization.normalises(statistics):
        raise UserError(
            f"the statistics that observations are normalised by are missing ({KEY})",
            "checkpoint.save(run, trainer) adds them; or pass statistics=environments.statistics()",
        )
