"""Muon with upstream's coefficients.

Every tensor with two or more dimensions is orthogonalised, 1-d tensors get plain Nesterov momentum.
Its one decay is ``beta1``: upstream accepts ``beta2`` and ``eps`` but uses neither.
"""

import math
from collections.abc import Callable

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx import ops
from puffer_mlx.config import Train
from puffer_mlx.ops.choice import kernel_on_gpu
from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.ppo.finite import step_if_finite, step_in_one
from puffer_mlx.ppo.optimizers import Optimizer
from puffer_mlx.ppo.optimizers.muon import gpu
from puffer_mlx.trees import Tree

REFERENCE = Reference(
    "Muon in one call",
    ("ppo.optimizers.muon:step",),
    test="tests/ppo/test_muon.py",
    cost="a minibatch's step takes longer",
)

COEFFICIENTS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


def orthogonalise(x: mx.array) -> mx.array:
    """Five quintic Newton-Schulz steps on x / max(norm, 1e-7): singular values move close to 1.

    Args:
        x: (R, C).

    Returns:
        (R, C).
    """
    tall = x.shape[0] > x.shape[1]
    x = x / mx.maximum(mx.sqrt(mx.sum(mx.square(x))), 1e-7)
    for a, b, c in COEFFICIENTS:
        gram = x.T @ x if tall else x @ x.T
        poly = mx.addmm(b * gram, gram, gram, alpha=c)
        x = mx.addmm(a * x, x, poly) if tall else mx.addmm(a * x, poly, x)
    return x


def muon_init(weights: Tree) -> Tree:
    """Zero momentum of the weights' shapes."""
    return tree_map(mx.zeros_like, weights)


def muon(
    weights: Tree,
    grads: Tree,
    momentum: Tree,
    *,
    lr: mx.array | float,
    beta: float,
    weight_decay: float = 0.0,
) -> tuple[Tree, Tree]:
    """One step: m = beta m + g, u = g + beta m, w = w (1 - lr wd) - lr scale orthogonalise(u).

    A tensor is viewed as a matrix (R, C), R its first dimension; scale = sqrt(max(1, R / C)). 1-d
    tensors take u itself.

    Args:
        weights: tree of arrays.
        grads: tree of the same structure, already clipped.
        momentum: tree from ``muon_init`` or the last step.
        lr: learning rate, a scalar array where it changes.
        beta: momentum (upstream's ``beta1``).
        weight_decay: part of a weight that a step takes away, times lr; 0 upstream.

    Returns:
        New weights and momentum.
    """
    momentum = tree_map(lambda m, g: beta * m + g, momentum, grads)

    def update(w: mx.array, g: mx.array, m: mx.array) -> mx.array:
        u = g + beta * m
        if u.ndim >= 2:
            matrix = u.reshape(u.shape[0], -1)
            scale = math.sqrt(max(1.0, matrix.shape[0] / matrix.shape[1]))
            u = scale * orthogonalise(matrix).reshape(u.shape)
        return w * (1 - lr * weight_decay) - lr * u

    return tree_map(update, weights, grads, momentum), momentum


def init(weights: Tree) -> Tree:
    """The state before the first step."""
    return {"momentum": muon_init(weights)}


def step(
    weights: Tree, grads: Tree, state: Tree, loss: mx.array, lr: mx.array, settings: Train
) -> tuple[Tree, Tree, mx.array]:
    """The clip and Muon, and nothing where the loss or a gradient isn't finite.

    On a CPU one operation of the extension, where that has a BLAS: of a small network's minibatch,
    the graph would be the larger part. On a GPU few launches, for the same reason.

    Args:
        weights: tree of float32 arrays.
        grads: tree of the same structure.
        state: ``momentum``, from ``init`` or the last step.
        loss: a scalar array.
        lr: learning rate, a scalar array.
        settings: ``beta1``, ``weight_decay`` and ``max_grad_norm`` count.

    Returns:
        New weights and state, and whether (a scalar) they are new.
    """
    beta, decay, max_norm = settings.beta1, settings.weight_decay, settings.max_grad_norm
    in_one = _in_one()
    if in_one is None:

        def update(weights: Tree, grads: Tree, state: Tree) -> tuple[Tree, Tree]:
            momentum = state["momentum"]
            weights, momentum = muon(weights, grads, momentum, lr=lr, beta=beta, weight_decay=decay)
            return weights, {"momentum": momentum}

        return step_if_finite(update, weights, grads, state, loss, max_norm)

    def operation(*leaves: list[mx.array]) -> list[mx.array]:
        return in_one(*leaves, lr, loss, max_norm, beta, decay, COEFFICIENTS)

    return step_in_one(operation, (weights, grads, state["momentum"]), weights, state)


def _in_one() -> Callable[..., list[mx.array]] | None:
    """The step as one call, where the default device has that."""
    extension = ops.extension_with_products(REFERENCE)
    return extension.muon_step if extension else kernel_on_gpu(gpu.step, REFERENCE)


OPTIMIZER = Optimizer(init, step, reads=("beta1", "weight_decay"))
