"""Statistics of several ranks' environments, made into those of all."""

from collections.abc import Mapping, Sequence

import numpy as np

Memory = Mapping[str, np.ndarray]  # see ``vec.base.Remembers``


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
