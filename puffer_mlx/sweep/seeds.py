"""Runs that are judged by several seeds: what they come to, and which are worth further seeds.

One seed finds lucky seeds: the best of many runs is partly the luckiest. All seeds of every
suggestion would cost as many times more, most of it for suggestions that nobody wants. So each has
one seed at first, and the others unless it is beaten: a run that costs no more is better by more
than seeds differ anyway, the noise seen. One with all of its seeds ends that; one that lacks some
may be lucky, so it only has its turn before.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from puffer_mlx.sweep.curve import Point
from puffer_mlx.sweep.settings import MEDIAN, WORST


class Judged(NamedTuple):
    """What is known of a suggestion.

    Args:
        scores: of its seeds so far, at least one; more is better.
        cost: of one run, seconds.
    """

    scores: list[float]
    cost: float

    def score(self, how: str) -> float:
        """The scores as one, by ``sweep.seeds_score``."""
        return as_one(self.scores, how)


def as_one(scores: Sequence[float], how: str, sign: int = 1) -> float:
    """The score of several seeds.

    Args:
        scores: of the seeds.
        how: ``sweep.seeds_score``.
        sign: -1 if less is better.
    """
    if how == WORST:
        return sign * min(sign * score for score in scores)
    return statistics.median(scores) if how == MEDIAN else statistics.fmean(scores)


def combined(curves: Sequence[Sequence[Point]], how: str, sign: int = 1) -> list[Point]:
    """One curve of several seeds' curves: scores as one, and mean costs and steps.

    Points are matched from the end: a curve has no point where no episode had ended yet.
    """
    length = min(len(curve) for curve in curves)
    joined: list[Point] = []
    for points in zip(*(curve[len(curve) - length :] for curve in curves), strict=True):
        score = as_one([point.score for point in points], how, sign)
        cost, steps = (
            statistics.fmean(each) for each in zip(*(p[1:] for p in points), strict=True)
        )
        joined.append(Point(score, cost, steps))
    return joined


def noise(known: Sequence[Judged]) -> float:
    """How much seeds differ: the median of suggestions' standard deviations; 0 if none has two."""
    deviations = [statistics.stdev(each.scores) for each in known if len(each.scores) > 1]
    return statistics.median(deviations) if deviations else 0.0


def is_beaten(
    one: Judged, rivals: Sequence[Judged], how: str, noise: float, enough: float = math.inf
) -> bool:
    """Whether a suggestion isn't worth another seed.

    Args:
        one: the suggestion.
        rivals: others.
        how: ``sweep.seeds_score``.
        noise: how much seeds differ.
        enough: a score above which more counts for nothing.
    """
    needed = min(one.score(how) + noise, enough)
    return any(each.cost <= one.cost and each.score(how) >= needed for each in rivals)
