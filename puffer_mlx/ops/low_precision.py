"""The 16-bit types: how an operation that is right, or fast, in float32 alone serves them too.

Casts are differentiable: what comes back to a low argument is a low gradient.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from puffer_mlx.system.backend import backend
from puffer_mlx.system.plain_functions import record

LOW = (mx.bfloat16, mx.float16)


def _is_low(leaf: Any) -> bool:
    return isinstance(leaf, mx.array) and leaf.dtype in LOW


def in_float32(function: Callable[..., Any], stay: Sequence[int] = ()) -> Callable[..., Any]:
    """``function``, which sees float32 where it is given low arrays.

    Args:
        function: of arrays, trees of them, and anything else; returns one array or several.
        stay: places of the results that are float32 whatever the arguments are; the others get the
            dtype of the first low argument.
    """

    @functools.wraps(function)
    def wide(*arguments: Any) -> Any:
        for _, leaf in tree_flatten(arguments):  # type: ignore
            if isinstance(leaf, mx.array) and leaf.dtype in LOW:
                low = leaf.dtype
                break
        else:
            return function(*arguments)
        result = function(*tree_map(lambda a: a.astype(mx.float32) if _is_low(a) else a, arguments))
        if isinstance(result, mx.array):
            return result if stay else result.astype(low)
        return tuple(a if i in stay else a.astype(low) for i, a in enumerate(result))

    return wide


def float32_on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """``in_float32`` where the default device is a CPU.

    There MLX's products of low arrays take twenty times as long as those of float32.
    """
    wide = in_float32(function)

    @functools.wraps(function)
    def chosen(*arguments: Any) -> Any:
        return (wide if backend() == "cpu" else function)(*arguments)

    return chosen


def dtype_of(weights: Any) -> mx.Dtype:
    """The dtype of the first floating-point array of a tree; float32 if there is none."""
    leaves = (a for _, a in tree_flatten(weights))  # type: ignore
    dtypes = (a.dtype for a in leaves if isinstance(a, mx.array))
    return next((d for d in dtypes if mx.issubdtype(d, mx.floating)), mx.float32)


record(__name__)
