"""List the arrays in trees: nested dictionaries and lists, in which MLX stores parameters."""

from operator import itemgetter
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

Tree = Any


def named_arrays(tree: Tree) -> list[tuple[str, mx.array]]:
    """List a tree's arrays with their dotted names (``network.0.weight``), in the tree's order."""
    return list(tree_flatten(tree))  # pyright: ignore[reportArgumentType, reportReturnType]


def leaves(tree: Tree) -> list[mx.array]:
    """List a tree's arrays without names, in the tree's order."""
    return list(map(itemgetter(1), tree_flatten(tree)))
