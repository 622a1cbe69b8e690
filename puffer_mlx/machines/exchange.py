"""What ranks exchange by MLX: arrays, for a graph.

A group computes its collectives where its backend can: on a CPU's stream, but NCCL's on the GPU,
where nobody waits for them. Each rank must ask for the same ones in the same order. ``messages.py``
is for what the host has to know.
"""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.ops import pack, unpack
from puffer_mlx.ppo.closed_form import operation as closed_form
from puffer_mlx.trees import leaves


def mean_of_ranks(group: mx.distributed.Group, *trees: Any) -> list[Any]:
    """Trees of float32 arrays as means over the ranks, which have the same trees; not evaluated.

    All of it is one message: a message costs about as much as a hundred thousand numbers.
    """
    arrays = [array for tree in trees for array in leaves(tree)]
    packed, _ = pack(arrays)
    total = mx.distributed.all_sum(packed, group=group) * (1 / group.size())
    parts = iter(unpack(total, [array.shape for array in arrays]))
    return [tree_map(lambda _: next(parts), tree) for tree in trees]


def joined(group: mx.distributed.Group, array: mx.array, axis: int = 0) -> mx.array:
    """All ranks' arrays of this shape, one after the other along an axis; not evaluated."""
    size, shape = group.size(), array.shape
    gathered = mx.distributed.all_gather(array, group=group).reshape(size, *shape)
    gathered = mx.moveaxis(gathered, 0, axis)
    return gathered.reshape(*shape[:axis], size * shape[axis], *shape[axis + 1 :])


def moments(group: mx.distributed.Group, adv: mx.array) -> mx.array:
    """What all ranks' advantages of this size are normalised by: see ``ppo.loss.Minibatch``."""
    mine = closed_form.moments(adv)
    return mx.distributed.all_gather(mine, group=group).reshape(group.size(), *mine.shape)


def all_bytes(group: mx.distributed.Group, data: bytes) -> list[bytes]:
    """Each rank's bytes, in the order of the ranks."""
    sizes = mx.distributed.all_gather(mx.array([len(data)], mx.int32), group=group)
    lengths: list[int] = sizes.tolist()  # type: ignore
    longest = max(max(lengths), 1)
    padded = np.frombuffer(data.ljust(longest, b"\0"), np.uint8)
    gathered = mx.distributed.all_gather(mx.array(padded), group=group)
    rows = np.asarray(gathered).reshape(group.size(), longest)
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]
