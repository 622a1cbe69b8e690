"""Wrappers that let operations take 16-bit arguments and compute in float32.

They are for operations that are correct, or fast, only in float32. Casts are differentiable: the
gradient of a 16-bit argument has 16 bits.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from puffer_mlx.system.backend import backend
from puffer_mlx.system.plain_functions import record

LOW_PRECISION_TYPES = (mx.bfloat16, mx.float16)


def _is_16_bit(leaf: Any) -> bool:
    return isinstance(leaf, mx.array) and leaf.dtype in LOW_PRECISION_TYPES


def in_float32(function: Callable[..., Any], stay: Sequence[int] = ()) -> Callable[..., Any]:
    """Return a wrapper of a function that casts 16-bit arguments to float32.

    Args:
        function: takes arrays, trees of arrays and other objects; returns one or several arrays.
        stay: indices of the results that stay float32. Other results are cast back to the dtype of
            the first 16-bit argument.
    """

    @functools.wraps(function)
    def wide(*arguments: Any) -> Any:
        for _, leaf in tree_flatten(arguments):  # type: ignore
            if isinstance(leaf, mx.array) and leaf.dtype in LOW_PRECISION_TYPES:
                low = leaf.dtype
                break
        else:
            return function(*arguments)
        result = function(
            *tree_map(lambda a: a.astype(mx.float32) if _is_16_bit(a) else a, arguments)
        )
        if isinstance(result, mx.array):
            return result if stay else result.astype(low)
        return tuple(a if i in stay else a.astype(low) for i, a in enumerate(result))

    return wide


def float32_on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper that computes 16-bit arguments in float32 on a CPU, unchanged on a GPU.

    On a CPU, MLX's 16-bit matrix products take twenty times as long as float32 products.
    """
    wide = in_float32(function)

    @functools.wraps(function)
    def chosen(*arguments: Any) -> Any:
        return (wide if backend() == "cpu" else function)(*arguments)

    return chosen


def dtype_of(weights: Any) -> mx.Dtype:
    """Return the dtype of a tree's first floating-point array, or float32 if it has none."""
    leaves = (a for _, a in tree_flatten(weights))  # type: ignore
    dtypes = (a.dtype for a in leaves if isinstance(a, mx.array))
    return next((d for d in dtypes if mx.issubdtype(d, mx.floating)), mx.float32)


record(__name__)
