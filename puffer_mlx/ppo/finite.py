"""The rules of every optimizer: gradients are clipped; what isn't finite changes nothing."""

from collections.abc import Callable, Sequence

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.ppo import precision
from puffer_mlx.system.backend import backend
from puffer_mlx.trees import Tree, named

Update = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]


def clip_by_global_norm(grads: Tree, max_norm: float) -> tuple[Tree, mx.array]:
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)).

    Returns:
        The gradients and their L2 norm before the clip (scalar).
    """
    norm = mx.sqrt(sum((mx.sum(mx.square(g)) for _, g in named(grads)), start=mx.array(0.0)))
    scale = mx.minimum(1.0, max_norm / (norm + 1e-6))
    return tree_map(lambda g: g * scale, grads), norm


def step_if_finite(
    update: Update, weights: Tree, grads: Tree, state: Tree, loss: mx.array, max_norm: float
) -> tuple[Tree, Tree, mx.array]:
    """An optimizer's update by clipped gradients, where the loss and all gradients are finite.

    Args:
        update: (weights, gradients, state) -> new weights and state.
        weights: tree of arrays.
        grads: tree of the same structure.
        state: the optimizer's.
        loss: a scalar array.
        max_norm: see ``clip_by_global_norm``.

    Returns:
        New weights and state, and whether (a scalar) they are new; else they are as before.
    """
    grads, norm = clip_by_global_norm(grads, max_norm)
    ok = mx.isfinite(norm) & mx.isfinite(loss)
    return *precision.choose(ok, update(weights, grads, state), (weights, state)), ok


def step_in_one(
    operation: Callable[..., list[mx.array]], trees: Sequence[Tree], weights: Tree, state: Tree
) -> tuple[Tree, Tree, mx.array]:
    """The same by one call that clips and looks for itself: a CPU's extension, or a GPU's kernels.

    Args:
        operation: lists of arrays, one for each of ``trees`` -> the new weights' arrays, the new
            state's, and whether they are new (1, else 0: a scalar).
        trees: what it reads.
        weights: tree of arrays; its form is that of the new ones.
        state: the optimizer's, likewise.

    Returns:
        As ``step_if_finite``; on a GPU, whether they are new is the call's own number, since to
        compare it would be a launch more.
    """
    *new, made = operation(*([array for _, array in named(tree)] for tree in trees))
    arrays = iter(new)
    weights, state = (tree_map(lambda _: next(arrays), tree) for tree in (weights, state))
    return weights, state, made > 0 if backend() == "cpu" else made
