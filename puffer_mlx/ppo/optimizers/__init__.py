"""How weights move: one file for each optimizer, all of its forms in it.

``train.optimizer`` is a file's name here. A file's ``OPTIMIZER`` is its ``Optimizer``; nothing else
needs to know of it.
"""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from puffer_mlx.trees import Tree


class Optimizer(NamedTuple):
    """An optimizer: functions of values, since weights and state are arguments and results.

    Args:
        init: weights -> its first state, trees of arrays by name.
        step: (weights, gradients, state, loss, learning rate, ``config.Train``) -> new weights, new
            state and whether (a scalar) they are new. Gradients are clipped to
            ``train.max_grad_norm``, and where the loss or one of them isn't finite, nothing is new:
            ``finite.step_if_finite`` does both. Loss and learning rate are scalar arrays.
        reads: the keys of [train] that it obeys, besides ``learning_rate`` and ``max_grad_norm``.
    """

    init: Callable[[Tree], Tree]
    step: Callable[..., tuple]
    reads: tuple[str, ...]


def find(name: str) -> Optimizer:
    """The optimizer of that name: a file of this folder."""
    return import_module(f"{__name__}.{name}").OPTIMIZER


def stored(state: Tree) -> Tree:
    """An optimizer's state under the names that a checkpoint has for it.

    ``momentum`` has none but its own: there was no other state before there was a choice.
    """
    others = {name: tree for name, tree in state.items() if name != "momentum"}
    return {name: state[name] for name in state.keys() & {"momentum"}} | {"optimizer": others}


def recovered(stored: Tree, like: Tree) -> Tree:
    """The state that was stored, its names those of ``like``."""
    others = stored.get("optimizer", {})
    return {name: stored[name] if name == "momentum" else others[name] for name in like}
