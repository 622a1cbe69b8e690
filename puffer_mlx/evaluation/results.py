"""Compute results of games: wins, draws, losses, score intervals and Elo ratings."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Z = 1.959963984540054  # 97.5 % quantile of the normal distribution, for two-sided 95 % intervals

ELO = 400.0  # rating difference at odds of ten to one
SWEEPS = 10_000
CLOSE = 1e-7  # Elo points

FEW = 20  # with fewer distinct games, more games would only repeat them


def mode(deterministic: bool) -> str:
    """Return how actions were chosen, for a person: deterministic or sampled actions."""
    return "deterministic" if deterministic else "sampled actions"


class Tally(NamedTuple):
    """Wins, draws and losses of one of two players."""

    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """Number of games."""
        return sum(self)

    @property
    def score(self) -> float:
        """Fraction of games won, with a draw as half a win."""
        return (self.wins + self.draws / 2) / self.games

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the score; see ``wilson``."""
        return wilson(self)

    def __str__(self) -> str:
        return self.described(self.interval)

    def described(self, interval: tuple[float, float] | None, more: str = "") -> str:
        """Return one line of text, with the score's interval if given and an optional remark."""
        bounds = [] if interval is None else ["{:.3f} to {:.3f}".format(*interval)]
        return (
            f"{self.wins:,} wins, {self.draws:,} draws, {self.losses:,} losses:"
            f" score {self.score:.3f} ({', '.join([*bounds, *filter(None, [more])])})"
        )


class PairResult(NamedTuple):
    """Results of two players' games, from the first player's point of view.

    Args:
        sides: Results on side 0 and on side 1, with equal numbers of games.
        steps: Steps per environment, over all its games.
        distinct: Number of distinct games. None with a player that samples actions.
        deterministic: True if the first player's actions aren't sampled.
    """

    sides: tuple[Tally, Tally]
    steps: int
    distinct: int | None = None
    deterministic: bool = False

    @property
    def total(self) -> Tally:
        """Results over both sides."""
        return Tally(*map(sum, zip(*self.sides, strict=True)))

    @property
    def independent(self) -> Tally:
        """Total scaled to the number of distinct games, which is the independent evidence."""
        total = self.total
        if self.distinct is None:
            return total
        return Tally(*(round(count * self.distinct / total.games) for count in total))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the score. None after repeats of fewer than ``FEW`` distinct games."""
        if self.distinct is not None and self.distinct < min(FEW, self.total.games):
            return None
        return wilson(self.independent)

    def __str__(self) -> str:
        repeated = self.distinct is not None and self.distinct < self.total.games
        more = f"{self.distinct:,} distinct games" if repeated else ""
        return f"{self.total.described(self.interval, more)}, {mode(self.deterministic)}"


def wilson(tally: Tally) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a score.

    E. B. Wilson, Probable inference, the law of succession, and statistical inference, Journal of
    the American Statistical Association 22 (1927). The formula assumes wins and losses only. Draws
    reduce the variance, so with draws the interval is slightly too wide.

    Args:
        tally: Results of at least one game.
    """
    n, p = tally.games, tally.score
    shrunk = 1 + Z**2 / n
    middle = (p + Z**2 / (2 * n)) / shrunk
    half = Z / shrunk * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def elo(results: Mapping[tuple[int, int], Tally], players: int) -> np.ndarray:
    """Return the Elo ratings of all players, (players,) float64, with mean 0.

    The ratings are 400 log10 s, with the maximum-likelihood strengths s of the Bradley-Terry model:
    player i beats j with probability s_i / (s_i + s_j). A draw is half a win for both players. Each
    pair gets one extra draw, so that a player without losses has a finite rating. The iteration is
    equation 3 of D. R. Hunter, MM algorithms for generalized Bradley-Terry models, Annals of
    Statistics 32 (2004).

    Args:
        results: Results for player i by pair (i, j), each pair once.
        players: Number of players. Games must connect all of them.
    """
    points = np.zeros(players)
    games = np.zeros((players, players))
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
