"""Taking up a state that another trainer saved."""

from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from puffer_mlx.checkpoint import State
from puffer_mlx.errors import UserError
from puffer_mlx.system.json_text import is_count, is_finite
from puffer_mlx.trees import named

COUNTERS = {  # and whether they are whole numbers
    **dict.fromkeys(("epoch", "global_step", "log_position"), True),
    **dict.fromkeys(("uptime", "learning_rate"), False),
}
OPTIONAL = "log_position", "learning_rate"


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
        UserError: the state is of another configuration, or its counters make no sense.
    """
    _check_counters(state.numbers)
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
    if wrong:
        raise UserError(
            f"the run's state is of another configuration: {'; '.join(wrong[:3])}",
            "go on with the run's own policy, vec.total_agents and vec.num_buffers",
        )
    return tree_unflatten([(name, arrays[name]) for name, _ in named(mine)])  # type: ignore


def _check_counters(numbers: dict[str, Any]) -> None:
    """Refuse counters that no run has: its log would be cut off, or it be over at once."""
    for name, whole in COUNTERS.items():
        value = numbers.get(name)
        right = is_count(value) if whole else is_finite(value) and value >= 0
        if not right and (name in numbers or name not in OPTIONAL):
            kind = "a whole number" if whole else "a number"
            raise _senseless(f"{name} is {value!r:.80}, expected {kind} from 0")
    if numbers["epoch"] > numbers["global_step"]:  # an epoch has one step at least
        raise _senseless(f"epoch is {numbers['epoch']} after {numbers['global_step']} steps")


def _senseless(what: str) -> UserError:
    message = f"the run's state makes no sense: {what}"
    return UserError(message, "the file is damaged; go on from another checkpoint")
