"""Compute results of games: wins, draws, losses, score intervals and Elo ratings."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Z_95 = 1.959963984540054  # 97.5 % quantile of the normal distribution, for two-sided 95 % intervals

ELO_SCALE = 400.0  # rating difference at odds of ten to one
MAX_ITERATIONS = 10_000  # to compute Elo ratings
ELO_TOLERANCE = 1e-7  # largest change of a rating in the last iteration, in Elo points

MIN_DISTINCT_GAMES = 20  # no interval is shown for fewer, because repeated games are no evidence


def action_mode(deterministic: bool) -> str:
    """Return the text that says how actions were chosen: deterministic, or sampled actions."""
    return "deterministic" if deterministic else "sampled actions"


class Tally(NamedTuple):
    """Numbers of wins, draws and losses of one of two players."""

    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """Number of games in this tally: wins, draws and losses."""
        return sum(self)

    @property
    def score(self) -> float:
        """Score of the player: the fraction of games won. A draw counts as half a win."""
        return (self.wins + self.draws / 2) / self.games

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson confidence interval of the player's score, as lower and upper end."""
        return wilson_interval(self)

    def __str__(self) -> str:
        return self.described(self.interval)

    def described(self, interval: tuple[float, float] | None, more: str = "") -> str:
        """Return one line of text about a player's results: wins, draws, losses and score.

        Args:
            interval: Interval of the score to show, or None.
            more: Remark to add, or "".
        """
        bounds = [] if interval is None else ["{:.3f} to {:.3f}".format(*interval)]
        return (
            f"{self.wins:,} wins, {self.draws:,} draws, {self.losses:,} losses:"
            f" score {self.score:.3f} ({', '.join([*bounds, *filter(None, [more])])})"
        )


class PairResult(NamedTuple):
    """Results of the games of two players, from the first player's point of view.

    Args:
        sides: Results on side 0 and on side 1, with equal numbers of games.
        steps: Steps per environment, over all its games.
        distinct: Number of distinct games, or None for players that sample actions.
        deterministic: True if the first player's actions aren't sampled.
    """

    sides: tuple[Tally, Tally]
    steps: int
    distinct: int | None = None
    deterministic: bool = False

    @property
    def total(self) -> Tally:
        """Wins, draws and losses of the first player over both sides."""
        return Tally(*map(sum, zip(*self.sides, strict=True)))

    @property
    def independent(self) -> Tally:
        """Wins, draws and losses of the first player, scaled down to the number of distinct games.

        They are scaled from all games, because repeated games aren't independent evidence.
        """
        total = self.total
        if self.distinct is None:
            return total
        return Tally(*(round(count * self.distinct / total.games) for count in total))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of the first player's score; None if too few were distinct.

        At least ``MIN_DISTINCT_GAMES`` distinct games are needed, or all games if there are fewer.
        """
        if self.distinct is not None and self.distinct < min(MIN_DISTINCT_GAMES, self.total.games):
            return None
        return wilson_interval(self.independent)

    def __str__(self) -> str:
        repeated = self.distinct is not None and self.distinct < self.total.games
        more = f"{self.distinct:,} distinct games" if repeated else ""
        return f"{self.total.described(self.interval, more)}, {action_mode(self.deterministic)}"


def wilson_interval(tally: Tally) -> tuple[float, float]:
    """Return the 95 % Wilson confidence interval of a player's score, as lower and upper end.

    E. B. Wilson, Probable inference, the law of succession, and statistical inference, Journal of
    the American Statistical Association 22 (1927). The formula assumes wins and losses only. Draws
    reduce the variance, so with draws the interval is slightly too wide.

    Args:
        tally: Results of at least one game.
    """
    n, p = tally.games, tally.score
    denominator = 1 + Z_95**2 / n
    middle = (p + Z_95**2 / (2 * n)) / denominator
    half = Z_95 / denominator * math.sqrt(p * (1 - p) / n + Z_95**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def elo_ratings(results: Mapping[tuple[int, int], Tally], players: int) -> np.ndarray:
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
    for _ in range(MAX_ITERATIONS):
        strength = 10 ** (rating / ELO_SCALE)
        strength = points / (games / (strength[:, None] + strength)).sum(axis=1)
        new_rating = ELO_SCALE * np.log10(strength)
        new_rating -= new_rating.mean()
        if np.abs(new_rating - rating).max() < ELO_TOLERANCE:
            return new_rating
        rating = new_rating
    return rating
