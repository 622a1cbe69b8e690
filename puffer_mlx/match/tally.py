"""What games came to: wins, draws and losses, and how sure their score is."""

import math
from typing import NamedTuple

Z = 1.959963984540054  # the normal distribution's 97.5 % quantile: 95 % lie within it on both sides


class Tally(NamedTuple):
    """What games came to, for one of two players."""

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
        low, high = self.interval
        return (
            f"{self.wins:,} wins, {self.draws:,} draws, {self.losses:,} losses:"
            f" score {self.score:.3f} ({low:.3f} to {high:.3f})"
        )


class PairResult(NamedTuple):
    """What two players' games came to, for the first of them.

    Args:
        sides: one for its games on side 0, one for those on side 1; as many games are in both.
        steps: of an environment, all its games together.
    """

    sides: tuple[Tally, Tally]
    steps: int

    @property
    def total(self) -> Tally:
        """Of both sides."""
        return Tally(*map(sum, zip(*self.sides, strict=True)))

    def __str__(self) -> str:
        return str(self.total)


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
