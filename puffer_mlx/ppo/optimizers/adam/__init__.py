"""Adam (Kingma and Ba 2015) with AdamW's decoupled weight decay (Loshchilov and Hutter 2019).

PPO with Adam usually uses beta1 0.9, beta2 0.999, eps 1e-5 and a learning rate that decreases
linearly to 0.
"""

import math
from functools import partial

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ppo.optimizers import Optimizer, fused_step, step_if_finite
from puffer_mlx.system.plain_functions import record
from puffer_mlx.trees import Tree


def init(weights: Tree) -> Tree:
    """Return Adam's initial state: both moments and the number of steps, all 0."""
    return {
        "momentum": tree_map(mx.zeros_like, weights),
        "second_moment": tree_map(mx.zeros_like, weights),
        "step": mx.array(0.0),
    }


def adam(
    weights: Tree,
    grads: Tree,
    state: Tree,
    *,
    lr: mx.array | float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float = 0.0,
) -> tuple[Tree, Tree]:
    """Make step number t of Adam: update all weights with these equations.

        m = beta1 m + (1 - beta1) g
        v = beta2 v + (1 - beta2) g^2
        w = w (1 - lr wd) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    Args:
        weights: tree of float32 arrays.
        grads: clipped gradients, a tree of the same structure.
        state: state from ``init`` or the previous step: ``momentum`` (m), ``second_moment`` (v)
            and ``step`` (t - 1).
        lr: learning rate. Pass a scalar array if it changes.
        beta1: decay rate of m.
        beta2: decay rate of v.
        eps: constant added to the denominator.
        weight_decay: weight decay wd.

    Returns:
        New weights and state.
    """
    step = state["step"] + 1
    rate = lr / _correction(beta1, step)
    inverse_root = mx.rsqrt(_correction(beta2, step))
    first = tree_map(lambda m, g: beta1 * m + (1 - beta1) * g, state["momentum"], grads)
    second = tree_map(
        lambda v, g: beta2 * v + (1 - beta2) * mx.square(g), state["second_moment"], grads
    )

    def update(w: mx.array, m: mx.array, v: mx.array) -> mx.array:
        return w * (1 - lr * weight_decay) - rate * m / (inverse_root * mx.sqrt(v) + eps)

    new = tree_map(update, weights, first, second)
    return new, {"momentum": first, "second_moment": second, "step": step}


def _correction(beta: float, step: mx.array) -> mx.array:
    """Return Adam's bias correction 1 - beta^step, accurate even if beta is close to 1."""
    log_beta = math.log(beta) if beta else -math.inf  # math.log(0) raises an exception
    return -mx.expm1(step * log_beta)


def step(
    weights: Tree,
    grads: Tree,
    state: Tree,
    loss: mx.array,
    lr: mx.array,
    *,
    max_grad_norm: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> tuple[Tree, Tree, mx.array]:
    """Clip the gradients and make Adam's step, unless the loss or a gradient isn't finite.

    On a CPU, this is one operation of the extension, because a small network's graph of many
    operations takes longer to submit than to compute.

    Args:
        weights: tree of float32 arrays.
        grads: gradients, a tree of the same structure.
        state: state from ``init`` or the previous step.
        loss: loss of the minibatch, a scalar array.
        lr: learning rate, a scalar array.
        max_grad_norm: largest L2 norm of all gradients.
        beta1: decay rate of the first moment.
        beta2: decay rate of the second moment.
        eps: constant added to the denominator.
        weight_decay: weight decay: see ``adam``.

    Returns:
        Weights, state, and a scalar flag, true if the weights were updated.
    """
    constants = {"beta1": beta1, "beta2": beta2, "eps": eps}
    fused = STEP.choose()
    if fused is None:

        def update(weights: Tree, grads: Tree, state: Tree) -> tuple[Tree, Tree]:
            return adam(weights, grads, state, lr=lr, weight_decay=weight_decay, **constants)

        return step_if_finite(update, weights, grads, state, loss, max_grad_norm)

    trees = weights, grads, state["momentum"], state["second_moment"]
    operation = partial(fused, decay=weight_decay, **constants)
    return fused_step(operation, trees, weights, state, state["step"], lr, loss, max_grad_norm)


STEP = Implementation(("ppo.optimizers.adam",), "Adam in one call", cpu="adam_step")
OPTIMIZER = Optimizer(init, step, ("beta1", "beta2", "eps", "weight_decay"), in_small_networks=True)

record(__name__)
