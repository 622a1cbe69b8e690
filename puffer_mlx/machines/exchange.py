"""What ranks exchange by MLX: arrays, for a graph; and how their statistics become those of all.

A group computes its collectives where its backend can: on a CPU's stream, but NCCL's on the GPU,
where nobody waits for them. Each rank must ask for the same ones in the same order. ``messages.py``
is for what the host has to know.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.ops import unpack
from puffer_mlx.ops.pack import pack
from puffer_mlx.ppo import closed_form
from puffer_mlx.trees import leaves

Memory = Mapping[str, np.ndarray]  # see ``vec.base.Remembers``


def mean_of_ranks(group: mx.distributed.Group, *trees: Any) -> list[Any]:
    """Trees of float32 arrays as means over the ranks, which have the same trees; not evaluated.

    All of it is one message: a message costs about as much as a hundred thousand numbers.
    """
    arrays = [array for tree in trees for array in leaves(tree)]
    packed, _ = pack(arrays)
    total = mx.distributed.all_sum(packed, group=group) * (1 / group.size())
    parts = iter(unpack(total, [array.shape for array in arrays]))
    return [tree_map(lambda _: next(parts), tree) for tree in trees]


def moments(group: mx.distributed.Group, adv: mx.array) -> mx.array:
    """What all ranks' advantages of this size are normalised by: see ``ppo.loss.Targets``."""
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


def merged_means(logs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over the episodes of several ranks, which ``n`` counts, as those over all of them."""
    logs = [log for log in logs if log.get("n")]
    count = sum(log["n"] for log in logs)
    names = dict.fromkeys(name for log in logs for name in log if name != "n")
    means = {name: sum(log.get(name, 0.0) * log["n"] for log in logs) / count for name in names}
    return {**means, "n": count} if logs else {}


def merged_moments(before: Memory, after: Sequence[Memory]) -> dict[str, np.ndarray]:
    """Running means and variances, after several ranks went on from the same ones by themselves.

    What each has seen since is told apart from what all had seen before, and added to it (Chan's
    parallel update, backwards and forwards).

    Args:
        before: what all had: ``X.count``, ``X.mean`` and ``X.variance`` of some X, float64.
        after: the same of each rank.
    """
    merged = {}
    for part in {name.partition(".")[0] for name in before}:
        names = [f"{part}.{key}" for key in ("count", "mean", "variance")]
        count, mean, variance = (before[name] for name in names)
        squares, first = variance * count, (count, mean, variance * count)
        for memory in after:
            n, own_mean, own_squares = _since(first, *(memory[name] for name in names))
            if n <= 0:
                continue
            moved, total = own_mean - mean, count + n
            squares = squares + own_squares + np.square(moved) * (count * n / total)
            mean, count = mean + moved * (n / total), total
        variance = squares / count if count else variance
        merged |= dict(zip(names, (np.array(count), mean, variance), strict=True))
    return merged


def _since(first: tuple, count: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> tuple:
    """Count, mean and squares of what was added to the first ones to give these."""
    before, first_mean, first_squares = first
    n = count - before
    if n <= 0:
        return 0, first_mean, first_squares
    own_mean = first_mean + (mean - first_mean) * (count / n)
    between = np.square(own_mean - first_mean) * (before * n / count)
    return n, own_mean, np.maximum(variance * count - first_squares - between, 0)
