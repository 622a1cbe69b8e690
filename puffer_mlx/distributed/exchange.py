"""Collectives of MLX, as parts of a graph, and merging of the ranks' statistics.

A group computes collectives on the CPU, with NCCL on the GPU, where the host doesn't wait for
them. All ranks must request the same collectives in the same order. ``messages.py`` sends what the
host needs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.ops import unpack_arrays
from puffer_mlx.ops.pack import pack_arrays
from puffer_mlx.ppo import closed_form
from puffer_mlx.trees import leaves

Statistics = Mapping[str, np.ndarray]  # see ``vec.base.HasNormalizer``


def mean_of_ranks(group: mx.distributed.Group, *trees: Any) -> list[Any]:
    """Return trees of float32 arrays as means over the ranks, not evaluated.

    They are exchanged in one message, because a message costs as much time as 100,000 numbers.

    Args:
        group: MLX's group of processes.
        *trees: trees with the same structure and shapes on all ranks.
    """
    arrays = [array for tree in trees for array in leaves(tree)]
    packed, _ = pack_arrays(arrays)
    total = mx.distributed.all_sum(packed, group=group) * (1 / group.size())
    parts = iter(unpack_arrays(total, [array.shape for array in arrays]))
    return [tree_map(lambda _: next(parts), tree) for tree in trees]


def moments(group: mx.distributed.Group, adv: mx.array) -> mx.array:
    """Return the moments of all ranks' advantages, for ``ppo.loss.Targets``.

    Args:
        group: MLX's group of processes.
        adv: this rank's advantages, of the same shape on all ranks.
    """
    mine = closed_form.advantage_moments(adv)
    return mx.distributed.all_gather(mine, group=group).reshape(group.size(), *mine.shape)


def all_bytes(group: mx.distributed.Group, data: bytes) -> list[bytes]:
    """Return each rank's bytes, in the order of the ranks."""
    sizes = mx.distributed.all_gather(mx.array([len(data)], mx.int32), group=group)
    lengths: list[int] = sizes.tolist()  # type: ignore
    longest = max(max(lengths), 1)
    padded = np.frombuffer(data.ljust(longest, b"\0"), np.uint8)
    gathered = mx.distributed.all_gather(mx.array(padded), group=group)
    rows = np.asarray(gathered).reshape(group.size(), longest)
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def merged_means(logs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge logs that are means over ``n`` episodes of a rank. Returns means over all episodes."""
    logs = [log for log in logs if log.get("n")]
    count = sum(log["n"] for log in logs)
    names = dict.fromkeys(name for log in logs for name in log if name != "n")
    means = {name: sum(log.get(name, 0.0) * log["n"] for log in logs) / count for name in names}
    return {**means, "n": count} if logs else {}


def merged_moments(before: Statistics, after: Sequence[Statistics]) -> dict[str, np.ndarray]:
    """Merge running means and variances that several ranks continued from the same values.

    For each rank, the statistics of its new samples are computed from those before and after
    (Chan's parallel update, reversed), and added to those before (the same update, forward).

    Args:
        before: ``X.count``, ``X.mean`` and ``X.variance`` for some names X, float64, which all
            ranks had in common.
        after: the statistics of each rank after its new samples.
    """
    merged = {}
    for part in {name.partition(".")[0] for name in before}:
        names = [f"{part}.{key}" for key in ("count", "mean", "variance")]
        count, mean, variance = (before[name] for name in names)
        squares = variance * count
        first = count, mean, squares
        for memory in after:
            n, own_mean, own_squares = _since(first, *(memory[name] for name in names))
            if n <= 0:
                continue
            moved = own_mean - mean
            total = count + n
            squares = squares + own_squares + np.square(moved) * (count * n / total)
            mean = mean + moved * (n / total)
            count = total
        variance = squares / count if count else variance
        merged |= dict(zip(names, (np.array(count), mean, variance), strict=True))
    return merged


def _since(first: tuple, count: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> tuple:
    """Return count, mean and sum of squared deviations of the samples added since ``first``."""
    before, first_mean, first_squares = first
    n = count - before
    if n <= 0:
        return 0, first_mean, first_squares
    own_mean = first_mean + (mean - first_mean) * (count / n)
    between = np.square(own_mean - first_mean) * (before * n / count)
    return n, own_mean, np.maximum(variance * count - first_squares - between, 0)
