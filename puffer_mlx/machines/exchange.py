"""What ranks exchange: sums of arrays for a graph, and small objects at once.

A group computes its collectives where its backend can: on a CPU's stream, but NCCL's on the GPU.
Each rank must ask for the same ones in the same order.
"""

import json
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.trees import leaves


def mean_of_ranks(group: mx.distributed.Group, *trees: Any) -> list[Any]:
    """Trees of float32 arrays as means over the ranks, which have the same trees; not evaluated.

    All of it is one message: a message costs about as much as a hundred thousand numbers.
    """
    arrays = [array for tree in trees for array in leaves(tree)]
    total = mx.distributed.all_sum(mx.concatenate([a.reshape(-1) for a in arrays]), group=group)
    total = total * (1 / group.size())
    ends = np.cumsum([array.size for array in arrays])[:-1].tolist()
    parts = iter(mx.split(total, ends))
    return [tree_map(lambda array: next(parts).reshape(array.shape), tree) for tree in trees]


def joined(group: mx.distributed.Group, array: mx.array, axis: int = 0) -> mx.array:
    """All ranks' arrays of this shape, one after the other along an axis; not evaluated."""
    size, shape = group.size(), array.shape
    found = mx.distributed.all_gather(array, group=group).reshape(size, *shape)
    found = mx.moveaxis(found, 0, axis)
    return found.reshape(*shape[:axis], size * shape[axis], *shape[axis + 1 :])


def moments(group: mx.distributed.Group, array: mx.array) -> mx.array:
    """Mean and unbiased deviation of all ranks' arrays of this size together: (2,) float32.

    Each rank tells its own mean and the sum of squares about it (Chan's parallel variance).
    """
    n, size = array.size, group.size()
    mean = mx.mean(array)
    own = mx.stack([mean, mx.sum(mx.square(array - mean))])
    means, squares = mx.distributed.all_gather(own, group=group).reshape(size, 2).T
    whole = mx.mean(means)
    total = mx.sum(squares) + n * mx.sum(mx.square(means - whole))
    return mx.stack([whole, mx.sqrt(total / (size * n - 1))])


def all_bytes(group: mx.distributed.Group, data: bytes) -> list[bytes]:
    """Each rank's bytes, in the order of the ranks."""
    sizes = mx.distributed.all_gather(mx.array([len(data)], mx.int32), group=group)
    lengths: list[int] = sizes.tolist()  # type: ignore
    longest = max(max(lengths), 1)
    padded = np.frombuffer(data.ljust(longest, b"\0"), np.uint8)
    found = mx.distributed.all_gather(mx.array(padded), group=group)
    rows = np.asarray(found).reshape(group.size(), longest)
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def all_objects(group: mx.distributed.Group, found: Any) -> list[Any]:
    """Each rank's object, of what JSON can hold, in the order of the ranks."""
    return [json.loads(text) for text in all_bytes(group, json.dumps(found).encode())]
