"""The clip of gradients by their global norm."""

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.trees import Tree, named


def clip_by_global_norm(grads: Tree, max_norm: float) -> tuple[Tree, mx.array]:
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)).

    Returns:
        The gradients and their L2 norm before the clip (scalar).
    """
    norm = mx.sqrt(sum((mx.sum(mx.square(g)) for _, g in named(grads)), start=mx.array(0.0)))
    scale = mx.minimum(1.0, max_norm / (norm + 1e-6))
    return tree_map(lambda g: g * scale, grads), norm
