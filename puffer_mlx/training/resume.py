"""Taking up a state that another trainer saved."""

from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from puffer_mlx.checkpoint import State
from puffer_mlx.errors import UserError
from puffer_mlx.trees import named

COUNTED = ("epoch", "global_step", "uptime")


def within(arrays: dict[str, mx.array], name: str) -> dict[str, mx.array]:
    """The arrays of a state whose names begin with a name and a dot, by what follows."""
    prefix = f"{name}."
    return {
        each.removeprefix(prefix): array
        for each, array in arrays.items()
        if each.startswith(prefix)
    }


def take(state: State, mine: dict[str, Any]) -> dict[str, Any]:
    """The trees of a state that belong to a trainer.

    Args:
        state: what was saved.
        mine: trees of arrays by name, as the trainer has them.

    Returns:
        The saved ones, of the same names, shapes and dtypes.

    Raises:
        UserError: the state is of another configuration.
    """
    arrays = state.arrays
    wrong = [
        f"{name}: {arrays[name].shape if name in arrays else 'missing'}, expected {a.shape}"
        for name, a in named(mine)
        if name not in arrays or arrays[name].shape != a.shape
    ] + [
        f"{name}: {arrays[name].dtype}, expected {a.dtype}"
        for name, a in named(mine)
        if name in arrays and arrays[name].dtype != a.dtype
    ]
    wrong += [
        f"{name}: {state.numbers.get(name)!r}, expected a number"
        for name in COUNTED
        if not isinstance(state.numbers.get(name), int | float)
    ]
    if wrong:
        raise UserError(
            f"the run's state is of another configuration: {'; '.join(wrong[:3])}",
            "go on with the run's own policy, vec.total_agents and vec.num_buffers",
        )
    return tree_unflatten([(name, arrays[name]) for name, _ in named(mine)])  # type: ignore
