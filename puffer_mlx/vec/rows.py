"""Allocate and check the arrays that environments read and write (``Rows``, actions)."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.base import Rows, VecEnv


class HasSpec(Protocol):
    """An object whose ``spec`` describes an environment's observations and actions."""

    spec: EnvSpec


def allocate_rows(vec: VecEnv, agents: int) -> Rows:
    """Allocate ``Rows`` (observations, rewards, ...) of zeros for some agents of an environment."""
    spec = vec.spec
    masks = np.zeros((agents, spec.mask_size), np.uint8) if spec.mask_size else None
    return Rows(
        np.zeros((agents, spec.observation_size), spec.observation_dtype),
        np.zeros(agents, np.float32),
        np.zeros(agents, np.float32),
        masks,
        np.zeros(agents, np.float32) if vec.final_observations else None,
    )


def random_actions(
    source: HasSpec, agents: int, rng: np.random.Generator, legal: np.ndarray | None = None
) -> np.ndarray:
    """Return random legal actions, (agents, heads) float32: uniform choices, or N(0, 1) values.

    Args:
        source: Environments or their layout, whose ``spec`` has the action space.
        agents: Number of agents.
        rng: Random generator.
        legal: (agents, logits), non-zero where a choice is legal. None when all choices are.
    """
    action = source.spec.action
    if action.continuous:
        return rng.standard_normal((agents, action.heads), np.float32)
    if legal is None:
        return rng.integers(0, action.sizes, (agents, action.heads)).astype(np.float32)
    # The largest of independent uniform numbers is a uniform choice among the legal ones.
    priorities = rng.random((agents, action.logits)) * (legal != 0)
    heads = np.split(priorities, np.cumsum(action.sizes)[:-1], axis=1)
    return np.stack([head.argmax(axis=1) for head in heads], axis=1).astype(np.float32)


class RowsChecker:
    """Checker of the shapes and dtypes of rows and actions of n agents. A check takes about 1 µs.

    Args:
        spec: Observations and actions of one agent.
        n: Number of agents.
    """

    def __init__(self, spec: EnvSpec, n: int) -> None:
        # Expected (shape, dtype) pairs; None without masks.
        self._observations = (n, spec.observation_size), spec.observation_dtype
        self._vector = (n,), np.dtype(np.float32)
        self._masks = ((n, spec.mask_size), np.dtype(np.uint8)) if spec.mask_size else None
        self._actions_shape = n, spec.action.heads

    def check(self, out: Rows) -> None:
        """Check the shape and dtype of each array in ``Rows`` of environments' results.

        ``final_observations`` may be None. ``masks`` must be None without action masks.

        Raises:
            ValueError: An array has another shape or dtype.
        """
        observations, rewards, terminals, masks, final_observations = out
        vector = self._vector
        if not (
            (observations.shape, observations.dtype) == self._observations
            and (rewards.shape, rewards.dtype) == vector
            and (terminals.shape, terminals.dtype) == vector
            and (None if masks is None else (masks.shape, masks.dtype)) == self._masks
            and (
                final_observations is None
                or (final_observations.shape, final_observations.dtype) == vector
            )
        ):
            shapes = {
                name: None if array is None else (array.shape, str(array.dtype))
                for name, array in out._asdict().items()
            }
            raise ValueError(
                f"rows: expected observations {self._observations}, rewards, terminals and"
                f" final_observations {vector}, masks {self._masks}; found {shapes}"
            )

    def check_actions(self, actions: np.ndarray) -> None:
        """Check the shape and dtype of an array of a policy's actions.

        Raises:
            ValueError: The array has another shape or dtype.
        """
        if actions.shape != self._actions_shape or actions.dtype != np.float32:
            raise ValueError(
                f"actions: expected float32 {self._actions_shape},"
                f" found {actions.dtype} {actions.shape}"
            )


def check_picture(name: str, picture: Any) -> np.ndarray:
    """Check that a result of ``render`` is a picture, (height, width, 3) uint8. Returns an array.

    Args:
        name: Name of the environments.
        picture: Result of ``render``.

    Raises:
        UserError: The result isn't a picture.
    """
    frame = None if picture is None else np.asarray(picture)
    if frame is None or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        what = "None" if frame is None else f"{frame.dtype} {frame.shape}"
        raise UserError(
            f"{name}: its picture is {what}, expected uint8 (height, width, 3)",
            'return such an array from render() if render_mode is "rgb_array"',
        )
    return frame


def non_finite_mask(rows: np.ndarray) -> np.ndarray | None:
    """Return a mask of an array's NaN and infinite numbers, or None when all are finite."""
    # A finite sum of squares proves that all are finite, fast. An infinite one doesn't prove the
    # opposite, since squares of huge numbers overflow: then each number is tested.
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
    """Raise an error for observations or rewards with NaN or infinity, which would spoil training.

    Args:
        name: Name of the environment.
        observations: (n, D) uint8 or float32.
        rewards: (n,) float32.
        first_env: Index of the first agent's environment.
        seeds: Seeds of all environments.
        per_environment: Number of agents in an environment.

    Raises:
        UserError: A number isn't finite. The message names the environment, its seed and the value.
    """
    checked = [("a reward", rewards)]
    if observations.dtype.kind == "f":
        checked.append(("observations", observations))
    for what, rows in checked:
        bad = non_finite_mask(rows)
        if bad is not None:
            rows = rows.reshape(len(rows), -1)
            row, column = np.argwhere(bad.reshape(rows.shape))[0].tolist()
            env, agent = divmod(row, per_environment)
            env += first_env
            source = f"environment {env} (seed {seeds[env]})"
            source += f", agent {agent}," if per_environment > 1 else ""
            position = f" at position {column}" if what == "observations" else ""
            raise UserError(
                f"{name}: {source} returned {what} of {rows[row, column]}{position}",
                "divisions by zero, logarithms and exponents in the environment are likely causes; "
                "this seed reproduces it",
            )
