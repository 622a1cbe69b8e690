"""The statistics that a policy's observations are normalised by, as they go with it into files.

``vec/normalize.py`` gathers them while a policy is trained. To act anywhere else the policy needs
them, so every kind of file but the flat one carries them, as tensors beside the weights:

| name | shape | |
| --- | --- | --- |
| ``normalization.observations.mean``, ``.variance``, ``.count`` | (D,), (D,), () | what it sees |
| ``normalization.observations.mean_rest`` | (D,) | added to the mean where float32 rounds that |
| ``normalization.return.mean``, ``.variance``, ``.count`` | (1,), (1,), () | only for training on |

Elsewhere in the package they are arrays by name, without the prefix (``vec.base.Remembers``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.normalize import can_normalise, deviation_inverse, normalise

PREFIX = "normalization."
REST = "observations.mean_rest"  # of the mean, what float32 rounds away
COARSE = 1e-3  # deviations that the mean in a file may be off
PARTS = ("mean", "variance", "count")
OBSERVATIONS = tuple(f"observations.{part}" for part in PARTS)

Memory = Mapping[str, Any]  # arrays by name


def normalises(memory: Memory) -> bool:
    """Whether these statistics are of observations, and not of rewards alone."""
    return OBSERVATIONS[0] in memory


def tensors_of(memory: Memory) -> dict[str, np.ndarray]:
    """Statistics as tensors of a file, float32; none if observations aren't normalised.

    A policy depends on those of observations alone. Those of rewards go with them, for whoever
    trains on.
    """
    if not normalises(memory):
        return {}
    return {PREFIX + name: np.array(array, np.float32) for name, array in memory.items()}


def with_rest(memory: Memory) -> dict[str, Any]:
    """Return statistics with the rest of the mean, where float32 would round that too coarsely.

    Only numbers that float64 holds and float32 doesn't, a clock's seconds say, need it.
    """
    if not normalises(memory):
        return dict(memory)
    try:
        with np.errstate(invalid="ignore"):
            mean, scale = _mean_and_scale(memory)
    except KeyError:  # incomplete statistics are refused when they are read
        return dict(memory)
    rest = mean - mean.astype(np.float32)
    is_coarse = mean.shape == scale.shape and (np.abs(rest) * scale > COARSE).any()
    return dict(memory) | ({REST: rest} if is_coarse else {})


def take(path: Path, tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A file's tensors taken apart: the others, and the statistics.

    Raises:
        UserError: the statistics aren't whole, or can't be any.
    """
    others = {name: w for name, w in tensors.items() if not name.startswith(PREFIX)}
    memory = {
        name.removeprefix(PREFIX): np.array(w, np.float64)
        for name, w in tensors.items()
        if name not in others
    }
    rest = memory.pop(REST, None)
    check(path, memory)
    if rest is not None and normalises(memory):
        if rest.shape != memory[OBSERVATIONS[0]].shape or not np.isfinite(rest).all():
            message = f"{path}: the statistics {REST} are damaged"
            raise UserError(message, "the file is damaged: export the policy again")
        memory[OBSERVATIONS[0]] += rest
    return others, memory


def check(path: Path, memory: Memory) -> None:
    """Refuse statistics that nothing can be normalised by.

    Raises:
        UserError: a part is missing, or of another shape, or isn't finite, or is below 0.
    """
    for what in {name.partition(".")[0] for name in memory}:
        parts = [np.asarray(memory.get(f"{what}.{part}", np.nan)) for part in PARTS]
        mean, variance, count = parts
        wrong = [part for part, a in zip(PARTS, parts, strict=True) if not np.isfinite(a).all()]
        if mean.shape != variance.shape or mean.ndim != 1 or count.shape != ():
            wrong = list(PARTS)
        elif not wrong and (variance.min(initial=0) < 0 or count < 0):
            wrong = ["variance"] if count >= 0 else ["count"]
        if wrong:
            raise UserError(
                f"{path}: the statistics {what}.{', '.join(wrong)} are missing or damaged",
                "the file is damaged: export the policy again",
            )


def check_size(path: Path, memory: Memory, spec: EnvSpec) -> None:
    """Refuse statistics of other observations than an environment's.

    Raises:
        UserError: it shows bytes, or another number of them.
    """
    if normalises(memory):
        size, D = len(memory[OBSERVATIONS[0]]), spec.observation_size
        if size != D or not can_normalise(spec):
            raise UserError(
                f"{path} normalises {size} numbers, but {spec.name} shows {D} of type"
                f" {spec.observation_dtype}",
                "name the environment that it was trained for",
            )


def apply(memory: Memory, observations: np.ndarray) -> np.ndarray:
    """Return observations (..., D) as the policy sees them: normalised, a copy, or as they were.

    They may be float64; normalised ones are float32.
    """
    if not normalises(memory):
        return observations
    rows = np.array(observations, np.float32)
    exact = observations if observations.dtype == np.float64 else None
    normalise(rows, *_mean_and_scale(memory), exact)
    return rows


def undo(memory: Memory, observations: np.ndarray) -> np.ndarray:
    """The inverse of ``apply``, but for clipping."""
    if not normalises(memory):
        return observations
    mean, scale = _mean_and_scale(memory)
    return (observations / scale + mean).astype(np.float32)


def _mean_and_scale(memory: Memory) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = (np.array(memory[name], np.float64) for name in OBSERVATIONS[:2])
    return mean, deviation_inverse(variance)
