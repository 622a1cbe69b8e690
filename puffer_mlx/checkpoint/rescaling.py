"""Store the bounds of rescaled actions beside a policy's weights.

With ``vec.rescale_actions`` an environment maps the policy's range -1 to 1 to its action bounds
(``spec.ActionSpec.bounds``). Files of such a policy contain the bounds as tensors, so that other
programs can compute actions in the environment's units:

| name | shape | action in the environment's units |
| --- | --- | --- |
| ``rescaling.low`` | (a,) | for the policy's action -1 |
| ``rescaling.high`` | (a,) | for the policy's action 1 |

A Gaussian policy with ``mean`` and ``logstd`` stays Gaussian in the environment's units. For bounds
with centre c and half width h, the mean becomes c + h mean, and the log standard deviation
log h + logstd.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import ActionSpec, rescaling

LOW, HIGH = "rescaling.low", "rescaling.high"  # names of the tensors

Bounds = tuple[tuple[float, float], ...]


def bounds_tensors(bounds: Bounds) -> dict[str, np.ndarray]:
    """Return the bounds of actions as float32 tensors for a weight file; {} without bounds."""
    if not bounds:
        return {}
    low, high = np.array(bounds, np.float32).T
    return {LOW: low.copy(), HIGH: high.copy()}


def split_bounds(path: Path, tensors: Mapping[str, Any]) -> tuple[dict[str, Any], Bounds]:
    """Split a weight file's tensors. Returns policy tensors, and bounds of rescaled actions.

    Raises:
        UserError: The bounds are incomplete or invalid.
    """
    policy_tensors = {name: w for name, w in tensors.items() if name not in (LOW, HIGH)}
    if len(policy_tensors) == len(tensors):
        return policy_tensors, ()
    low, high = (  # NaN, if missing, is reported below
        np.array(tensors.get(name, np.nan), np.float32) for name in (LOW, HIGH)
    )
    with np.errstate(over="ignore", invalid="ignore"):
        width = high - low if low.shape == high.shape else np.array(np.nan)
    if low.ndim != 1 or not (np.isfinite(width).all() and (width > 0).all()):
        raise UserError(
            f"{path}: the bounds of actions, {LOW} and {HIGH}, are missing or damaged",
            "the file is damaged: export the policy again",
        )
    return policy_tensors, tuple(zip(low.tolist(), high.tolist(), strict=True))


def to_environment_units(
    action: ActionSpec, mean: np.ndarray, logstd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Convert means and log standard deviations of a policy's actions to the environment's units.

    Args:
        action: Actions of the environment, with bounds if they are rescaled.
        mean: Means in the policy's range, (..., a).
        logstd: Log standard deviations, (..., a).

    Returns:
        The converted means and log standard deviations, float32.
    """
    if not action.bounds:
        return mean, logstd
    centre, half = (array.astype(np.float32) for array in rescaling(action.bounds))
    return centre + half * mean, np.log(half) + logstd
