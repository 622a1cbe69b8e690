"""Results of games: wins, draws and losses, the interval of their score, and Elo ratings."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Z = 1.959963984540054  # the normal distribution's 97.5 % quantile: 95 % lie within it on both sides

ELO = 400.0  # points for odds of ten to one
SWEEPS = 10_000
CLOSE = 1e-7  # Elo points

FEW = 20  # distinct games that are no sample: the same ones would be played again


class Tally(NamedTuple):
    """Results of games, for one of two players."""

    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """How many there were."""
        return sum(self)

    @property
    def score(self) -> float:
        """The part that was won; a draw is half a win."""
        return (self.wins + self.draws / 2) / self.games

    @property
    def interval(self) -> tuple[float, float]:
        """The score's 95 % interval: see ``wilson``."""
        return wilson(self)

    def __str__(self) -> str:
        return self.described(self.interval)

    def described(self, interval: tuple[float, float] | None, more: str = "") -> str:
        """As a line, with an interval of its score if there is one, and more words."""
        bounds = [] if interval is None else ["{:.3f} to {:.3f}".format(*interval)]
        return (
            f"{self.wins:,} wins, {self.draws:,} draws, {self.losses:,} losses:"
            f" score {self.score:.3f} ({', '.join([*bounds, *filter(None, [more])])})"
        )


class PairResult(NamedTuple):
    """Results of two players' games, for the first of them.

    Args:
        sides: one for its games on side 0, one for those on side 1; as many games are in both.
        steps: of an environment, all its games together.
        distinct: games that differ, where neither player draws; None: each game counts.
    """

    sides: tuple[Tally, Tally]
    steps: int
    distinct: int | None = None

    @property
    def total(self) -> Tally:
        """Of both sides."""
        return Tally(*map(sum, zip(*self.sides, strict=True)))

    @property
    def independent(self) -> Tally:
        """The total, as if each distinct game had been played once: the independent evidence."""
        total = self.total
        if self.distinct is None:
            return total
        return Tally(*(round(count * self.distinct / total.games) for count in total))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The score's 95 % interval; None where fewer than ``FEW`` distinct games were repeated."""
        if self.distinct is not None and self.distinct < min(FEW, self.total.games):
            return None
        return wilson(self.independent)

    def __str__(self) -> str:
        repeated = self.distinct is not None and self.distinct < self.total.games
        more = f"{self.distinct:,} distinct games" if repeated else ""
        return self.total.described(self.interval, more)


def wilson(tally: Tally) -> tuple[float, float]:
    """The 95 % interval of a score, by Wilson's formula.

    E. B. Wilson, Probable inference, the law of succession, and statistical inference, Journal of
    the American Statistical Association 22 (1927). It is for wins and losses alone; draws vary
    less, so with them the interval is rather too wide.

    Args:
        tally: of at least one game.
    """
    n, p = tally.games, tally.score
    shrunk = 1 + Z**2 / n
    middle = (p + Z**2 / (2 * n)) / shrunk
    half = Z / shrunk * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def elo(results: Mapping[tuple[int, int], Tally], players: int) -> np.ndarray:
    """Elo ratings of all players, (players,) float64, their mean 0.

    The Bradley-Terry model's likeliest strengths: i beats j with probability s_i / (s_i + s_j),
    ratings are 400 log10 s. A draw is half a win for both. One more draw is added to each pair's
    games: without it, who never lost would have no finite rating. Strengths are found by the
    iteration of D. R. Hunter, MM algorithms for generalized Bradley-Terry models, Annals of
    Statistics 32 (2004), equation 3.

    Args:
        results: of pairs (i, j), for i; each pair of players once.
        players: how many; all are connected by games.
    """
    points, games = np.zeros(players), np.zeros((players, players))
    for (i, j), tally in results.items():
        points[i] += tally.wins + (tally.draws + 1) / 2
        points[j] += tally.losses + (tally.draws + 1) / 2
        games[i, j] += tally.games + 1
        games[j, i] += tally.games + 1
    rating = np.zeros(players)
    for _ in range(SWEEPS):
        s = 10 ** (rating / ELO)
        s = points / (games / (s[:, None] + s)).sum(axis=1)
        new = ELO * np.log10(s)
        new -= new.mean()
        if np.abs(new - rating).max() < CLOSE:
            return new
        rating = new
    return rating
