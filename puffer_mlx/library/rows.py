"""Between an environment's observations and actions and the rows that a policy has of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.spaces import leaves, nested, path_text


class Form(NamedTuple):
    """How one environment's observations and actions look.

    Args:
        rows: observation -> its rows (n, D), and whether it was a single one.
        actions: (n, heads) float32 and whether one is wanted -> what the environment takes.
    """

    rows: Callable[[Any], tuple[np.ndarray, bool]]
    actions: Callable[[np.ndarray, bool], Any]


def of_layout(layout: Layout, spec: EnvSpec) -> Form:
    """Of an environment in Python: its spaces say it."""
    observation_space, action_space = layout.spaces
    parts = list(leaves(spec.name, observation_space, "observation"))

    def rows(observation: Any) -> tuple[np.ndarray, bool]:
        values = {path: _at(spec, observation, path) for path, _, _ in parts}
        path, space, _ = parts[0]
        single = values[path].shape == tuple(space.shape)
        if single:
            values = {path: value[None] for path, value in values.items()}
        n = len(values[path]) if values[path].ndim else 0
        for path, space, _ in parts:
            if not n or values[path].shape != (n, *space.shape):
                raise _misfit(
                    spec, values[path].shape[single:], tuple(space.shape), path_text(path)
                )
        out = np.zeros((n, spec.observation_size), spec.observation_dtype)
        layout.write(nested(observation_space, values), out)
        return out, single

    def actions(chosen: np.ndarray, single: bool) -> Any:
        batch = layout.actions(chosen)
        if not single:
            return batch
        paths = (path for path, _, _ in leaves(spec.name, action_space, "action"))
        return nested(action_space, {path: _at(spec, batch, path)[0] for path in paths})

    return Form(rows, actions)


def plain(spec: EnvSpec) -> Form:
    """Of an environment in C: rows are what it shows, heads what it takes; one head has no axis."""
    shapes = [(spec.observation_size,)]
    shapes += [spec.observation_shape] if spec.observation_shape else []

    def rows(observation: Any) -> tuple[np.ndarray, bool]:
        values = np.asarray(observation)
        single = values.shape in shapes
        if not single and (values.shape[1:] not in shapes or not len(values)):
            raise _misfit(spec, values.shape, shapes[0], "")
        return values.reshape(-1, spec.observation_size).astype(spec.observation_dtype), single

    def actions(chosen: np.ndarray, single: bool) -> Any:
        batch = chosen if spec.action.continuous else chosen.astype(np.int64)
        batch = batch if spec.action.continuous or spec.action.heads > 1 else batch[:, 0]
        return batch[0] if single else batch

    return Form(rows, actions)


def _at(spec: EnvSpec, value: Any, path: tuple) -> np.ndarray:
    """A part of nested dicts and tuples, an array."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise UserError(
                f"the observation has no part {path_text(path)}",
                f"one of {spec.name}, as its reset and step return it",
            ) from None
    return np.asarray(value)


def _misfit(spec: EnvSpec, shape: tuple, expected: tuple, where: str) -> UserError:
    part = f" of {where}" if where else ""
    return UserError(
        f"the observation{part} has shape {shape}, and {spec.name} shows {expected}",
        f"one of shape {expected}, or n of them: (n{''.join(f', {size}' for size in expected)})",
    )
