"""Cases in which every two values of different arguments meet, in place of all combinations."""

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any


def pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return few combinations of values such that each pair of values of two axes occurs.

    The result is always the same. Example:

    pytest.mark.parametrize(("network", "masked", "dtype"), pairs(NETWORKS, [False, True], DTYPES))
    """
    values = [list(axis) for axis in axes]
    left = [*product(*(range(len(axis)) for axis in values))]
    open_pairs = {pair for case in left for pair in combinations(enumerate(case), 2)}
    chosen = []
    while open_pairs:
        best = max(left, key=lambda case: len(open_pairs & {*combinations(enumerate(case), 2)}))
        open_pairs -= {*combinations(enumerate(best), 2)}
        chosen.append(tuple(axis[i] for axis, i in zip(values, best, strict=True)))
    return chosen
