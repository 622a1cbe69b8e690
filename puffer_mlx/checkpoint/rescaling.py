"""What a policy's continuous actions are rescaled to, as it goes with the policy into files.

With ``vec.rescale_actions`` an environment takes a policy's -1 to 1 as low to high of its bounds.
What carries such a policy elsewhere carries the bounds (``spec.ActionSpec.bounds``), as tensors
beside the weights, and whoever runs it gets actions in the environment's units:

| name | shape | |
| --- | --- | --- |
| ``rescaling.low``, ``rescaling.high`` | (a,), (a,) | what -1 and 1 are |

A Gaussian that is moved and stretched is one: with the centre c and half the width h of the bounds
its mean is c + h mean, its log standard deviation log h + logstd.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import ActionSpec, rescaling

LOW, HIGH = NAMES = "rescaling.low", "rescaling.high"

Bounds = tuple[tuple[float, float], ...]


def tensors_of(bounds: Bounds) -> dict[str, np.ndarray]:
    """Bounds as tensors of a file, float32; none if nothing is rescaled."""
    if not bounds:
        return {}
    low, high = np.array(bounds, np.float32).T
    return {LOW: low.copy(), HIGH: high.copy()}


def take(path: Path, tensors: Mapping[str, Any]) -> tuple[dict[str, Any], Bounds]:
    """A file's tensors taken apart: the others, and the bounds.

    Raises:
        UserError: the bounds aren't whole, or can't be any.
    """
    others = {name: w for name, w in tensors.items() if name not in NAMES}
    if len(others) == len(tensors):
        return others, ()
    low, high = (np.array(tensors.get(name, np.nan), np.float32) for name in NAMES)
    with np.errstate(over="ignore", invalid="ignore"):
        width = high - low if low.shape == high.shape else np.array(np.nan)
    if low.ndim != 1 or not (np.isfinite(width).all() and (width > 0).all()):
        raise UserError(
            f"{path}: the bounds of actions, {LOW} and {HIGH}, are missing or damaged",
            "the file is damaged: export the policy again",
        )
    return others, tuple(zip(low.tolist(), high.tolist(), strict=True))


def in_units(
    action: ActionSpec, mean: np.ndarray, logstd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Means and log standard deviations (..., a) in the environment's units, float32."""
    if not action.bounds:
        return mean, logstd
    centre, half = (part.astype(np.float32) for part in rescaling(action.bounds))
    return centre + half * mean, np.log(half) + logstd
