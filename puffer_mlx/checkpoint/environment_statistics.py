"""What a policy learned to see and to put out: out of files, and into environments.

Without its statistics (``normalization.py``) a policy of normalised observations is a different
policy: it is never written without them, and whoever plays it normalises by them.
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
from puffer_mlx.vec.base import Remembers, VecEnv
from puffer_mlx.vec.normalize import shows_normalised

MEMORY = "normalization.safetensors"  # in a checkpoint's folder, or after the name of another file
KEY, RESCALE = "vec.normalize_observations", "vec.rescale_actions"
CHANNELS = "vec.image_channels"


def read_statistics(path: Path) -> dict[str, Any]:
    """The statistics that go with a policy, float64 arrays by name; empty if there are none.

    Args:
        path: a checkpoint's folder, or any file of weights. A file has them inside, or beside it
            under its own name; a checkpoint's files have them in the same folder.

    Raises:
        UserError: they are damaged, or may not be read.
    """
    with reading(path):
        holds = path.suffix == ".safetensors" and path.is_file()
        if holds and (inside := normalization.take(path, read(path)[0])[1]):
            return inside
        beside = [path / MEMORY, path.with_name(f"{path.name}.{MEMORY}"), path.parent / MEMORY]
        for file in beside[:1] if path.is_dir() else beside[1:]:
            if file.is_file():
                tensors = {normalization.PREFIX + name: w for name, w in read(file)[0].items()}
                return normalization.take(file, tensors)[1]
        return {}


def write_statistics(memory: Mapping[str, Any], path: Path) -> None:
    """Write statistics into a file of their own, float32."""
    memory = normalization.with_rest(memory)
    arrays = {name: mx.array(np.asarray(array, np.float32)) for name, array in memory.items()}
    save_safetensors(arrays, path, {"puffer_mlx": "1"})


def gathered_statistics(vec: VecEnv) -> dict[str, Any]:
    """What environments have measured so far that a policy depends on; empty if nothing."""
    return vec.memory() if isinstance(vec, Remembers) else {}


def as_trained(config: Config, path: Path) -> Config:
    """Return a configuration that shows and takes what the policy was trained with.

    It normalises observations if the policy saw normalised ones, rescales actions if the policy put
    out such, and reads images as the policy's run did. What was typed stays; if it doesn't fit,
    ``restore_statistics`` and ``refuse_other_units`` refuse it.

    Args:
        config: as it was asked for.
        path: the checkpoint's folder, or the file of weights, that is to play or to be trained on.
    """
    settings = config.vec
    free = not settings.normalize_observations and not typed(config, KEY)
    if free and normalization.normalises(read_statistics(path)):
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
    """What ``as_trained`` changed, a line each."""
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
    """Whether a policy's actions were rescaled when it was trained; None if the file can't tell.

    A checkpoint's configuration tells, and the tensors of any other safetensors file.

    Raises:
        UserError: the file is damaged, or may not be read.
    """
    with reading(path):
        if path.suffix == ".safetensors" and path.name != WEIGHTS:
            return bool(rescaling.take(path, read(path)[0])[1])
        if texts := _run_texts(path):
            return BOOLS.get(texts.get(RESCALE, "False").lower(), False)
        if path.name == WEIGHTS and path.is_file():
            return bool(rescaling.take(path, read(path)[0])[1])
    return None


def _run_texts(path: Path) -> dict[str, str]:
    """Return the keys of a run's configuration as text; {} if the path isn't a run's weights.

    Args:
        path: A checkpoint's folder, or a file of weights.

    Raises:
        UserError: The configuration may not be read.
    """
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".safetensors" and path.name != WEIGHTS:
        return {}
    with reading(path):
        if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
            return ini_file(folder / CONFIG).texts
    return {}


def refuse_other_units(vec: VecEnv, path: Path) -> None:
    """Refuse to have a policy play where its actions mean something else than it learned.

    Args:
        vec: the environments.
        path: as of ``as_trained``; only safetensors files tell.

    Raises:
        UserError: they rescale its actions, and it was trained otherwise, or the other way round.
    """
    if path.suffix != ".safetensors" or not path.is_file():
        return
    learned, taken = rescaling.take(path, read(path)[0])[1], vec.spec.action.bounds
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


def restore_statistics(vec: VecEnv, path: Path, frozen: bool = False) -> None:
    """Have environments normalise observations as they were while the policy was trained.

    Args:
        vec: the environments; call it before they are reset.
        path: the checkpoint's folder, or the file of weights.
        frozen: they are to learn no more.

    Raises:
        UserError: they normalise observations and there are no statistics, or of another kind; or
            there are, and they don't.
    """
    known = read_statistics(path)
    if isinstance(vec, Remembers):
        if normalization.normalises(vec.memory()) and not normalization.normalises(known):
            raise UserError(
                f"{vec.spec.name} is to normalise observations, and the statistics are missing:"
                f" {relative(path)} has none",
                "--vec.normalize-observations 0 if the policy learned from them as they are;"
                " else name its checkpoint's folder",
            )
        vec.remember(known, frozen)
    elif normalization.normalises(known):
        raise UserError(
            f"{relative(path)} is a policy of normalised observations,"
            f" and {vec.spec.name} shows others",
            "--vec.normalize-observations 1",
        )


def share(trained: VecEnv, vec: VecEnv) -> None:
    """Have other environments normalise observations as a trainer's environments do by now.

    Args:
        trained: a trainer's.
        vec: others of the same configuration, which learn no more; call it before they are reset.
    """
    if isinstance(vec, Remembers):
        vec.remember(gathered_statistics(trained), frozen=True)


def require_statistics(config: Config, spec: EnvSpec, memory: Mapping[str, Any]) -> None:
    """Refuse to write a policy without the statistics that make it what it is.

    Raises:
        UserError: the configuration normalises observations, and the statistics aren't there.
    """
    if shows_normalised(config, spec) and not normalization.normalises(memory):
        raise UserError(
            f"the statistics that observations are normalised by are missing ({KEY})",
            "checkpoint.save(run, trainer) asks for them itself; or memory=environments.memory()",
        )
