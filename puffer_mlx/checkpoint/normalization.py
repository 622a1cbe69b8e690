"""Store normalization statistics of observations beside a policy's weights.

``vec/normalize.py`` measures them during training. The policy needs them in every environment, so
all file formats except the flat one contain them as tensors:

| name | shape | |
| --- | --- | --- |
| ``normalization.observations.mean``, ``.variance``, ``.count`` | (D,), (D,), () | observations |
| ``normalization.observations.mean_rest`` | (D,) | added to the mean where float32 is too coarse |
| ``normalization.return.mean``, ``.variance``, ``.count`` | (1,), (1,), () | only for resuming |

In the rest of the package they are arrays by name without the prefix (``vec.base.HasNormalizer``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.normalize import can_normalise, deviation_inverse, normalise_rows

PREFIX = "normalization."
REST = "observations.mean_rest"  # the mean's rounding error in float32
COARSE = 1e-3  # largest error of a stored mean, in standard deviations
PARTS = ("mean", "variance", "count")
OBSERVATIONS = tuple(f"observations.{part}" for part in PARTS)

Statistics = Mapping[str, Any]  # arrays by name


def normalises(statistics: Statistics) -> bool:
    """Return True if the statistics include observations, not only rewards."""
    return OBSERVATIONS[0] in statistics


def tensors_of(statistics: Statistics) -> dict[str, np.ndarray]:
    """Return statistics as float32 tensors for a file; {} if observations aren't normalized.

    Reward statistics are included for resuming; the policy itself only needs those of observations.
    """
    if not normalises(statistics):
        return {}
    return {PREFIX + name: np.array(array, np.float32) for name, array in statistics.items()}


def with_rest(statistics: Statistics) -> dict[str, Any]:
    """Return statistics with the rounding error of the mean, where float32 is too coarse.

    Needed only for values that float64 can hold and float32 can't, such as a clock in seconds.
    """
    if not normalises(statistics):
        return dict(statistics)
    try:
        with np.errstate(invalid="ignore"):
            mean, scale = _mean_and_scale(statistics)
    except KeyError:  # reading reports incomplete statistics
        return dict(statistics)
    rest = mean - mean.astype(np.float32)
    is_coarse = mean.shape == scale.shape and (np.abs(rest) * scale > COARSE).any()
    return dict(statistics) | ({REST: rest} if is_coarse else {})


def split_statistics(
    path: Path, tensors: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Split a file's tensors into policy tensors and float64 statistics.

    Raises:
        UserError: If the statistics are incomplete or invalid.
    """
    others = {name: w for name, w in tensors.items() if not name.startswith(PREFIX)}
    statistics = {
        name.removeprefix(PREFIX): np.array(w, np.float64)
        for name, w in tensors.items()
        if name not in others
    }
    rest = statistics.pop(REST, None)
    check(path, statistics)
    if rest is not None and normalises(statistics):
        if rest.shape != statistics[OBSERVATIONS[0]].shape or not np.isfinite(rest).all():
            message = f"{path}: the statistics {REST} are damaged"
            raise UserError(message, "the file is damaged: export the policy again")
        statistics[OBSERVATIONS[0]] += rest
    return others, statistics


def check(path: Path, statistics: Statistics) -> None:
    """Raise an error for invalid statistics.

    Raises:
        UserError: If a part is missing, not finite or of a wrong shape, or if a variance or count
            is negative.
    """
    for what in {name.partition(".")[0] for name in statistics}:
        parts = [np.asarray(statistics.get(f"{what}.{part}", np.nan)) for part in PARTS]
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


def check_size(path: Path, statistics: Statistics, spec: EnvSpec) -> None:
    """Raise an error if statistics don't fit an environment's observations.

    Raises:
        UserError: If the environment has uint8 observations or another observation size.
    """
    if normalises(statistics):
        size = len(statistics[OBSERVATIONS[0]])
        D = spec.observation_size
        if size != D or not can_normalise(spec):
            raise UserError(
                f"{path} normalises {size} numbers, but {spec.name} shows {D} of type"
                f" {spec.observation_dtype}",
                "name the environment that it was trained for",
            )


def apply(statistics: Statistics, observations: np.ndarray) -> np.ndarray:
    """Return observations (..., D) as the policy sees them.

    Args:
        statistics: Statistics by name.
        observations: (..., D), float32 or float64.

    Returns:
        Normalized float32 copy, or the same array without statistics.
    """
    if not normalises(statistics):
        return observations
    rows = np.array(observations, np.float32)
    exact = observations if observations.dtype == np.float64 else None
    normalise_rows(rows, *_mean_and_scale(statistics), exact)
    return rows


def undo(statistics: Statistics, observations: np.ndarray) -> np.ndarray:
    """Return the inverse of ``apply``, without clipping."""
    if not normalises(statistics):
        return observations
    mean, scale = _mean_and_scale(statistics)
    return (observations / scale + mean).astype(np.float32)


def _mean_and_scale(statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = (np.array(statistics[name], np.float64) for name in OBSERVATIONS[:2])
    return mean, deviation_inverse(variance)
