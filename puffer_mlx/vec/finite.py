"""What environments must not return."""

import math
from collections.abc import Sequence

import numpy as np

from puffer_mlx.errors import UserError

__all__ = ["check_finite", "not_finite"]


def not_finite(rows: np.ndarray) -> np.ndarray | None:
    """Which numbers of an array of floats aren't finite, of its shape; None if all are."""
    # one number says it for nearly all steps; a sum of huge ones may overflow, hence the rest
    if math.isfinite(np.vdot(rows, rows)):
        return None
    bad = np.logical_not(np.isfinite(rows))
    return bad if bad.any() else None


def check_finite(
    name: str,
    observations: np.ndarray,
    rewards: np.ndarray,
    first_env: int,
    seeds: Sequence[int],
    per_environment: int = 1,
) -> None:
    """Refuse rows with numbers that aren't finite: one of them would spoil all weights.

    Args:
        name: the environment's.
        observations: (n, D) uint8 or float32.
        rewards: (n,) float32.
        first_env: number of the environment of the first agent.
        seeds: of all environments, by their numbers.
        per_environment: agents that share an environment.

    Raises:
        UserError: names the first environment, its seed and what it returned.
    """
    checked = [("a reward", rewards)]
    if observations.dtype.kind == "f":
        checked.append(("observations", observations))
    for what, rows in checked:
        bad = not_finite(rows)
        if bad is not None:
            rows = rows.reshape(len(rows), -1)
            row, column = np.argwhere(bad.reshape(rows.shape))[0].tolist()
            env, agent = divmod(row, per_environment)
            env += first_env
            whose = f"environment {env} (seed {seeds[env]})"
            whose += f", agent {agent}," if per_environment > 1 else ""
            at = f" at position {column}" if what == "observations" else ""
            raise UserError(
                f"{name}: {whose} returned {what} of {rows[row, column]}{at}",
                "divisions by zero, logarithms and exponents in the environment are likely causes; "
                "it can be had again with that seed",
            )
