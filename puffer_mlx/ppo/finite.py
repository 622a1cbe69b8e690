"""The rule of every optimizer: a loss or a gradient that isn't finite changes nothing."""

from collections.abc import Callable

import mlx.core as mx

from puffer_mlx.ppo import precision
from puffer_mlx.ppo.clip import clip_by_global_norm
from puffer_mlx.trees import Tree

Update = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]


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
