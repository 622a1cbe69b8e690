"""Store normalization statistics of observations in a policy's weight file, and apply them.

``vec/normalize.py`` measures the statistics during training. The policy needs them in every
environment, so all file formats except PufferLib's flat one contain them as tensors:

| name | shape | |
| --- | --- | --- |
| ``normalization.observations.mean``, ``.variance``, ``.count`` | (D,), (D,), () | observations |
| ``normalization.observations.mean_rest`` | (D,) | rounding error of a float32 mean, if large |
| ``normalization.return.mean``, ``.variance``, ``.count`` | (1,), (1,), () | only for resuming |

Elsewhere in the package, statistics are arrays by name without ``normalization.``
(``vec.base.HasNormalizer``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.normalize import can_normalise, deviation_inverse, normalise_rows

PREFIX = "normalization."
MEAN_REST = "observations.mean_rest"  # float64 mean minus float32 mean
MAX_ROUNDING_ERROR = 1e-3  # of a mean without ``MEAN_REST``, in standard deviations
FIELDS = ("mean", "variance", "count")
OBSERVATIONS = tuple(f"observations.{field}" for field in FIELDS)

Statistics = Mapping[str, Any]  # arrays by name


def normalises(statistics: Statistics) -> bool:
    """Return True if normalization statistics include observations, not only rewards."""
    return OBSERVATIONS[0] in statistics


def statistics_tensors(statistics: Statistics) -> dict[str, np.ndarray]:
    """Return normalization statistics as float32 tensors for a weight file.

    Returns {} if observations aren't normalized. Statistics of rewards are included for resuming.
    """
    if not normalises(statistics):
        return {}
    return {PREFIX + name: np.array(array, np.float32) for name, array in statistics.items()}


def with_rounding_error(statistics: Statistics) -> dict[str, Any]:
    """Return normalization statistics with the part of the mean that float32 loses, if it is large.

    It is large for observations that need float64, such as a clock in seconds.
    """
    if not normalises(statistics):
        return dict(statistics)
    try:
        with np.errstate(invalid="ignore"):
            mean, scale = _mean_and_scale(statistics)
    except KeyError:  # incomplete statistics, which ``check_statistics`` reports
        return dict(statistics)
    rest = mean - mean.astype(np.float32)
    is_coarse = mean.shape == scale.shape and (np.abs(rest) * scale > MAX_ROUNDING_ERROR).any()
    return dict(statistics) | ({MEAN_REST: rest} if is_coarse else {})


def split_statistics(
    path: Path, tensors: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Split a weight file's tensors. Returns policy tensors, and float64 normalization statistics.

    Raises:
        UserError: The statistics are incomplete or invalid.
    """
    policy_tensors = {name: w for name, w in tensors.items() if not name.startswith(PREFIX)}
    statistics = {
        name.removeprefix(PREFIX): np.array(w, np.float64)
        for name, w in tensors.items()
        if name.startswith(PREFIX)
    }
    rest = statistics.pop(MEAN_REST, None)
    check_statistics(path, statistics)
    if rest is not None and normalises(statistics):
        if rest.shape != statistics[OBSERVATIONS[0]].shape or not np.isfinite(rest).all():
            message = f"{path}: the statistics {MEAN_REST} are damaged"
            raise UserError(message, "the file is damaged: export the policy again")
        statistics[OBSERVATIONS[0]] += rest
    return policy_tensors, statistics


def check_statistics(path: Path, statistics: Statistics) -> None:
    """Raise an error if normalization statistics are invalid.

    Raises:
        UserError: An array is missing, not finite or of a wrong shape, or a variance or count is
            negative.
    """
    for group in {name.partition(".")[0] for name in statistics}:  # observations, return
        arrays = [np.asarray(statistics.get(f"{group}.{field}", np.nan)) for field in FIELDS]
        mean, variance, count = arrays
        wrong = [field for field, a in zip(FIELDS, arrays, strict=True) if not np.isfinite(a).all()]
        if mean.shape != variance.shape or mean.ndim != 1 or count.shape != ():
            wrong = list(FIELDS)
        elif not wrong and (variance.min(initial=0) < 0 or count < 0):
            wrong = ["variance"] if count >= 0 else ["count"]
        if wrong:
            raise UserError(
                f"{path}: the statistics {group}.{', '.join(wrong)} are missing or damaged",
                "the file is damaged: export the policy again",
            )


def check_size(path: Path, statistics: Statistics, spec: EnvSpec) -> None:
    """Raise an error if normalization statistics don't fit an environment's observations.

    Raises:
        UserError: The environment has uint8 observations or another observation size.
    """
    if normalises(statistics):
        size = len(statistics[OBSERVATIONS[0]])
        D = spec.observation_size
        if size != D or not can_normalise(spec):
            raise UserError(
                f"{path} normalises observations of {size} numbers, but those of {spec.name}"
                f" have {D} of type {spec.observation_dtype}",
                "name the environment that it was trained for",
            )


def normalize_observations(statistics: Statistics, observations: np.ndarray) -> np.ndarray:
    """Normalize observations with a policy's saved statistics, as in its training. Returns them.

    Args:
        statistics: Normalization statistics by name.
        observations: (..., D), float32 or float64.

    Returns:
        Normalized float32 copy, or the same array if there are no statistics of observations.
    """
    if not normalises(statistics):
        return observations
    rows = np.array(observations, np.float32)
    exact = observations if observations.dtype == np.float64 else None
    normalise_rows(rows, *_mean_and_scale(statistics), exact)
    return rows


def denormalize_observations(statistics: Statistics, observations: np.ndarray) -> np.ndarray:
    """Return normalized observations in the environment's units again. Clipping isn't undone."""
    if not normalises(statistics):
        return observations
    mean, scale = _mean_and_scale(statistics)
    return (observations / scale + mean).astype(np.float32)


def _mean_and_scale(statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = (np.array(statistics[name], np.float64) for name in OBSERVATIONS[:2])
    return mean, deviation_inverse(variance)
