"""How weights move: one file, or one folder, for each optimizer and all of its forms.

``train.optimizer`` is a file's name here. A file's ``OPTIMIZER`` is its ``Optimizer``; nothing else
needs to know of it.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.config.schema import OPTIMIZERS
from puffer_mlx.errors import UserError
from puffer_mlx.ppo import custom
from puffer_mlx.trees import Tree, named


class Optimizer(NamedTuple):
    """An optimizer: functions of values, since weights and state are arguments and results.

    Args:
        init: weights -> its first state, trees of arrays by name.
        step: (weights, gradients, state, loss, learning rate, ``config.Train``) -> new weights, new
            state and whether (a scalar: bool, or float32 1 or 0) they are new. Gradients are
            clipped to ``train.max_grad_norm``, and where the loss or one of them isn't finite,
            nothing is new: ``finite.step_if_finite`` does both. Loss and learning rate are scalar
            arrays.
        reads: the keys of [train] that it obeys, besides ``learning_rate`` and ``max_grad_norm``.
        numbers: of [train], those that its form in ``ppo/small_networks`` takes; None: it has none
            there.
    """

    init: Callable[[Tree], Tree]
    step: Callable[..., tuple]
    reads: tuple[str, ...]
    numbers: Callable[[Any], tuple[float, ...]] | None = None


def find(name: str) -> Optimizer:
    """The optimizer of that name: a file of this folder."""
    return import_module(f"{__name__}.{name}").OPTIMIZER


def of(config: Config) -> Optimizer:
    """The optimizer of a configuration: a file of this folder, or the user's own.

    Raises:
        UserError: there is none of that name, or only a file names it (``config.trust``).
    """
    own = custom.find(config, "optimizer")
    if own is None:
        return find(config.train.optimizer)
    if not isinstance(own, Optimizer):
        kind = own.__name__ if isinstance(own, type) else type(own).__name__
        raise UserError(
            f"train.optimizer {config.train.optimizer} is {kind}, not an Optimizer",
            "puffer_mlx.ppo.optimizers.Optimizer(init, step, reads); docs/custom_policy.md",
        )
    return own


def kept(optimizer: Optimizer) -> int:
    """How many numbers an optimizer's state has for each weight."""
    weight = mx.zeros((100, 100))
    return sum(array.size for _, array in named(optimizer.init({"": weight}))) // weight.size


def unread(config: Config) -> list[str]:
    """Keys that were given and that other optimizers obey, but not this one."""
    mine = of(config).reads
    read = dict.fromkeys(f"train.{key}" for name in OPTIMIZERS for key in find(name).reads)
    return [key for key in read if key in config.origins and key.partition(".")[2] not in mine]


# ---- in checkpoints ------------------------------------------------------------------------------


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


def refuse_another(name: str, numbers: Mapping[str, Any]) -> None:
    """Refuse to go on with another optimizer than a run's own.

    Args:
        name: the optimizer that is to go on.
        numbers: those of the run's state; before there was a choice, they named none.

    Raises:
        UserError: the state is another one's.
    """
    if name != (own := numbers.get("optimizer", "muon")):
        raise UserError(
            f"train.optimizer is {name}, and the run's state is of {own}",
            f"go on with --train.optimizer {own}, or begin a new run from its weights:"
            " --load-model-path",
        )
