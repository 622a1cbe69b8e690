"""Optimizers, each in a file or folder, and the steps that all of them share.

``train.optimizer`` is the name of one of these modules. Its ``OPTIMIZER`` is an ``Optimizer``.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Config, Train
from puffer_mlx.config.schema import OPTIMIZERS
from puffer_mlx.errors import UserError
from puffer_mlx.ppo import custom
from puffer_mlx.system.plain_functions import record
from puffer_mlx.trees import Tree, leaves, named_arrays

# (weights, gradients, state) -> new weights and state.
UpdateFunction = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]


class Optimizer(NamedTuple):
    """An optimizer: pure functions that take and return weights and optimizer state.

    Args:
        init: weights -> initial state, trees of arrays by name.
        step: (weights, gradients, state, loss, learning rate, **hyperparameters) -> weights, state
            and a scalar flag (bool, or float32 1 or 0), true if the weights were updated. Loss and
            learning rate are scalar arrays. The function must clip the gradients to
            ``max_grad_norm``, and return weights and state unchanged if the loss or a gradient
            isn't finite. ``step_if_finite`` does both.
        reads: keys of [train] that ``step`` uses, besides ``learning_rate`` and ``max_grad_norm``.
        in_small_networks: True if ``ppo/small_networks`` implements the optimizer, with the values
            of ``reads`` in order.
        supports_bf16: True if ``step`` has an argument ``low``, true to allow products in bf16.
    """

    init: Callable[[Tree], Tree]
    step: Callable[..., tuple]
    reads: tuple[str, ...]
    in_small_networks: bool = False
    supports_bf16: bool = False

    def hyperparameters(self, train: Train) -> dict[str, float]:
        """Return the optimizer's hyperparameters from [train], as arguments of ``step``."""
        values = {key: getattr(train, key) for key in ("max_grad_norm", *self.reads)}
        return {**values, "low": train.precision == "bf16"} if self.supports_bf16 else values


def find_optimizer(name: str) -> Optimizer:
    """Return the built-in optimizer of a name, such as ``muon``."""
    return import_module(f"{__name__}.{name}").OPTIMIZER


def from_config(config: Config) -> Optimizer:
    """Return the optimizer of a configuration, built-in or custom.

    Raises:
        UserError: If the optimizer doesn't exist, an untrusted file names it (``config.trust``), or
            it reads keys that [train] lacks.
    """
    optimizer = custom.find_custom(config, "optimizer")
    if optimizer is None:
        return find_optimizer(config.train.optimizer)
    if not isinstance(optimizer, Optimizer):
        kind = (optimizer if isinstance(optimizer, type) else type(optimizer)).__name__
        raise UserError(
            f"train.optimizer {config.train.optimizer} is {kind}, not an Optimizer",
            "puffer_mlx.ppo.optimizers.Optimizer(init, step, reads); docs/custom_policy.md",
        )
    if unknown := [key for key in optimizer.reads if not hasattr(config.train, key)]:
        raise UserError(
            f"train.optimizer {config.train.optimizer} reads {unknown[0]}, which [train] lacks",
            "reads: keys of [train], passed to its step as keyword arguments",
        )
    return optimizer


def state_size(optimizer: Optimizer) -> int:
    """Return the number of values that an optimizer stores per weight."""
    # A large matrix: values stored once for all weights, such as the step, then count as 0.
    weight = mx.zeros((100, 100))
    return sum(array.size for _, array in named_arrays(optimizer.init({"": weight}))) // weight.size


def unused_optimizer_keys(config: Config) -> list[str]:
    """Return the keys of [train] that the user set for another optimizer than the chosen one."""
    used = from_config(config).reads
    unused: dict[str, None] = {}  # a set that keeps the order
    for name in OPTIMIZERS:
        for key in find_optimizer(name).reads:
            if key not in used and f"train.{key}" in config.origins:
                unused[f"train.{key}"] = None
    return list(unused)


# ---- shared by all optimizers: clip the gradients, skip the step unless everything is finite -----


def clip_by_global_norm(grads: Tree, max_norm: float) -> tuple[Tree, mx.array]:
    """Clip gradients by their global norm: multiply all by min(1, max_norm / (norm + 1e-6)).

    Returns:
        The clipped gradients, and their L2 norm before the clip, a scalar array.
    """
    norm = mx.sqrt(sum((mx.sum(mx.square(g)) for _, g in named_arrays(grads)), start=mx.array(0.0)))
    scale = mx.minimum(1.0, max_norm / (norm + 1e-6))
    return tree_map(lambda g: g * scale, grads), norm


def step_if_finite(
    update: UpdateFunction, weights: Tree, grads: Tree, state: Tree, loss: mx.array, max_norm: float
) -> tuple[Tree, Tree, mx.array]:
    """Clip the gradients and update the weights, unless the loss or a gradient isn't finite.

    Args:
        update: (weights, gradients, state) -> new weights and state.
        weights: tree of arrays.
        grads: gradients, a tree of the same structure.
        state: state of the optimizer.
        loss: loss of the minibatch, a scalar array.
        max_norm: largest L2 norm of all gradients.

    Returns:
        The weights, the state and a scalar flag. If the flag is false, both are unchanged.
    """
    grads, norm = clip_by_global_norm(grads, max_norm)
    ok = mx.isfinite(norm) & mx.isfinite(loss)
    new_trees = update(weights, grads, state)
    old_trees = weights, state
    weights, state = tree_map(lambda new, old: mx.where(ok, new, old), new_trees, old_trees)
    return weights, state, ok


def fused_step(
    operation: Callable[..., list[mx.array]],
    trees: Sequence[Tree],
    weights: Tree,
    state: Tree,
    *arguments: Any,
) -> tuple[Tree, Tree, mx.array]:
    """Make an optimizer's step in one operation of the CPU extension.

    Args:
        operation: (a list of arrays for each tree, *arguments) -> arrays of the new weights and
            state, and a scalar, 1 if the weights were updated, else 0.
        trees: trees that the operation reads.
        weights: tree with the structure of the new weights.
        state: tree with the structure of the new state.
        arguments: further arguments of the operation.

    Returns:
        The weights, the state and a scalar flag.
    """
    *arrays, ok = operation(*map(leaves, trees), *arguments)
    new = iter(arrays)
    weights = tree_map(lambda _: next(new), weights)
    state = tree_map(lambda _: next(new), state)
    return weights, state, ok > 0


# ---- the optimizer's state in checkpoints --------------------------------------------------------


def to_checkpoint(state: Tree) -> Tree:
    """Return an optimizer's state under the names that checkpoints use.

    ``momentum`` is at the top level, as in checkpoints older than ``train.optimizer``.
    """
    rest = dict(state)
    if "momentum" not in rest:
        return {"optimizer": rest}
    momentum = rest.pop("momentum")
    return {"momentum": momentum, "optimizer": rest}


def from_checkpoint(stored: Tree, template: Tree) -> Tree:
    """Return an optimizer's state from a checkpoint, under the names of ``template``."""
    rest = stored.get("optimizer", {})
    return {name: stored[name] if name == "momentum" else rest[name] for name in template}


def check_same_optimizer(name: str, saved_values: Mapping[str, Any]) -> None:
    """Check that a run is resumed with the optimizer of its saved state.

    Args:
        name: optimizer of the resumed run.
        saved_values: JSON values of the saved state. The oldest checkpoints have no ``optimizer``,
            because Muon was the only one.

    Raises:
        UserError: If the state belongs to another optimizer.
    """
    if name != (saved := saved_values.get("optimizer", "muon")):
        raise UserError(
            f"train.optimizer is {name}, but the run was saved with {saved}",
            f"resume with --train.optimizer {saved}, or start a new run from its weights:"
            " --load-model-path",
        )


record(__name__)
