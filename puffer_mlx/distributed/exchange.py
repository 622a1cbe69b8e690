"""Average and gather the ranks' arrays with MLX's collectives, and merge their statistics.

Collectives are operations of MLX's lazy graph. They run on the CPU, or with NCCL on the GPU without
making the host wait. All ranks must call the same collectives in the same order. For small messages
between hosts, ``messages.py`` is faster.
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

RunningStatistics = Mapping[str, np.ndarray]  # of normalizers, see ``vec.base.HasNormalizer``


def mean_of_ranks(group: mx.distributed.Group, *trees: Any) -> list[Any]:
    """Average trees of arrays over all ranks. Returns the trees of means, not evaluated.

    All arrays are sent in one message, because each message takes as long as sending 100,000
    floats.

    Args:
        group: MLX's group of processes.
        *trees: Trees of float32 arrays, with the same structure and shapes on all ranks.
    """
    arrays = [array for tree in trees for array in leaves(tree)]
    packed, _ = pack_arrays(arrays)
    total = mx.distributed.all_sum(packed, group=group) * (1 / group.size())
    means = iter(unpack_arrays(total, [array.shape for array in arrays]))
    return [tree_map(lambda _: next(means), tree) for tree in trees]


def gather_moments(group: mx.distributed.Group, adv: mx.array) -> mx.array:
    """Gather each rank's statistics of its advantages, to normalize advantages over all ranks.

    Args:
        group: MLX's group of processes.
        adv: This rank's advantages, of the same shape on all ranks.

    Returns:
        ``closed_form.advantage_moments`` of each rank, (ranks, ...), for ``ppo.loss.Targets``.
    """
    mine = closed_form.advantage_moments(adv)
    return mx.distributed.all_gather(mine, group=group).reshape(group.size(), *mine.shape)


def all_gather_bytes(group: mx.distributed.Group, data: bytes) -> list[bytes]:
    """Send bytes to all ranks by MLX's collectives, and return the bytes of all ranks, by rank."""
    sizes = mx.distributed.all_gather(mx.array([len(data)], mx.int32), group=group)
    lengths: list[int] = sizes.tolist()  # type: ignore
    width = max(max(lengths), 1)
    padded = np.frombuffer(data.ljust(width, b"\0"), np.uint8)
    gathered = mx.distributed.all_gather(mx.array(padded), group=group)
    rows = np.asarray(gathered).reshape(group.size(), width)
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def merged_means(logs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge the episode statistics that the ranks logged. Returns means over all ranks' episodes.

    Args:
        logs: Logs of each rank: means over ``n`` episodes, and ``n``.
    """
    logs = [log for log in logs if log.get("n")]
    count = sum(log["n"] for log in logs)
    names = dict.fromkeys(name for log in logs for name in log if name != "n")
    means = {name: sum(log.get(name, 0.0) * log["n"] for log in logs) / count for name in names}
    return {**means, "n": count} if logs else {}


def merged_moments(
    common: RunningStatistics, by_rank: Sequence[RunningStatistics]
) -> dict[str, np.ndarray]:
    """Merge running means and variances to which each rank has added samples. Returns the result.

    All ranks started from the same statistics. Chan's parallel update merges the statistics of two
    sets of samples. Here its inverse computes the statistics of each rank's new samples, and the
    update adds them to the merged statistics.

    Args:
        common: ``X.count``, ``X.mean`` and ``X.variance`` for some names X, float64, as they were
            on all ranks before the new samples.
        by_rank: Statistics of each rank, including the new samples.
    """
    merged = {}
    for prefix in {name.partition(".")[0] for name in common}:
        names = [f"{prefix}.{key}" for key in ("count", "mean", "variance")]
        count, mean, variance = (common[name] for name in names)
        squares = variance * count
        start = count, mean, squares
        for statistics in by_rank:
            n, new_mean, new_squares = _added_samples(start, *(statistics[name] for name in names))
            if n <= 0:
                continue
            delta = new_mean - mean
            total = count + n
            squares = squares + new_squares + np.square(delta) * (count * n / total)
            mean = mean + delta * (n / total)
            count = total
        variance = squares / count if count else variance
        merged |= dict(zip(names, (np.array(count), mean, variance), strict=True))
    return merged


def _added_samples(
    start: tuple, count: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> tuple:
    """Return count, mean and sum of squared deviations of the samples added to running statistics.

    Args:
        start: (count, mean, sum of squared deviations) before the samples.
        count: Number of samples, including those added.
        mean: Mean of these samples.
        variance: Variance of these samples.
    """
    start_count, start_mean, start_squares = start
    n = count - start_count
    if n <= 0:
        return 0, start_mean, start_squares
    new_mean = start_mean + (mean - start_mean) * (count / n)
    between = np.square(new_mean - start_mean) * (start_count * n / count)
    return n, new_mean, np.maximum(variance * count - start_squares - between, 0)
