"""All that self-play remembers: the pool, the opponents of the moment, ratings, counters.

A pool is a list of earlier weights, the oldest first. Its entries refer to the learner's arrays as
they were: training replaces arrays and never writes into them, so nothing is copied.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from puffer_mlx.selfplay.results import Results

NEWEST = 5  # entries that aren't drawn, where there are more
SPREAD = 400  # points of Elo that make the odds 10 to 1


@dataclass(eq=False)
class Entry:
    """Earlier weights.

    Attributes:
        weights: a tree of arrays, which nobody changes.
        step: environment steps that they were trained with.
        elo: their rating, in points.
    """

    weights: Any
    step: int
    elo: float


def thinned(entries: list[Entry], most: int) -> list[Entry]:
    """A pool with at most so many entries: without every second one of its older half.

    Args:
        entries: at most one more than fits.
        most: how many fit.
    """
    if len(entries) <= most:
        return entries
    half = len(entries) // 2
    return [*entries[1:half:2], *entries[half:]]


def draw_by_age(entries: list[Entry], rng: np.random.Generator) -> Entry:
    """One of the entries without the newest 5, if there are more: newer ones rather than older.

    The i-th, from 0, has the weight sqrt(i + 1).
    """
    candidates = entries[:-NEWEST] if len(entries) > NEWEST else entries
    weights = np.sqrt(np.arange(1, len(candidates) + 1))
    return candidates[rng.choice(len(candidates), p=weights / weights.sum())]


def draw_any(entries: list[Entry], rng: np.random.Generator) -> Entry:
    """One of the entries, each as likely as the others."""
    return entries[rng.integers(len(entries))]


def expected(own: float, other: float) -> float:
    """The mean score, 0 to 1, that one of these ratings is to reach against the other."""
    return 1 / (1 + 10 ** ((other - own) / SPREAD))


def moved(own: float, other: float, score: float, k: float) -> tuple[float, float]:
    """Both ratings after games; what one gains the other loses.

    Args:
        own: the rating of one, in points.
        other: that of its opponent.
        score: mean of the games for the first one: 1 a win, 0.5 a draw, 0 a loss.
        k: points that a rating moves at most.
    """
    gain = k * (score - expected(own, other))
    return own + gain, other - gain


@dataclass
class Opponent:
    """Who plays for one of the B opponents, and what came of it since.

    Attributes:
        entry: the weights that it acts by.
        started: steps trained when they came.
        score: of the games since: 1 for each that the learner won, 0.5 for a draw.
        games: how many there were.
        pending: who is to replace it, once all its games have ended; None: nobody yet.
        waited: rollouts since that was decided.
        winrate_at_swap: the learner's mean score against the last one that was replaced, when that
            was decided; None before the first.
        epochs_to_align: rollouts that its replacement waited for; None before the first.
    """

    entry: Entry
    started: int = 0
    score: float = 0.0
    games: int = 0
    pending: Entry | None = None
    waited: int = 0
    winrate_at_swap: float | None = None
    epochs_to_align: int | None = None

    @property
    def winrate(self) -> float | None:
        """The learner's mean score, 0 to 1, since these weights came; None without a game."""
        return self.score / self.games if self.games else None


@dataclass
class Table:
    """Everything that a checkpoint needs of a league.

    Attributes:
        pool: the oldest first; never empty.
        opponents: B of them.
        elo: the learner's rating, in points.
        rng: what is drawn, is drawn by this.
        aligned: (E,) bool: environments where a game has ended since their opponent's replacement
            was decided.
        stepped: steps trained when the pool last took weights (puffer4's), or opponents were last
            drawn (puffer5's).
        swaps: opponents replaced so far.
        fresh: numbers, from 1, of the opponents whose weights changed after the last rollout.
    """

    pool: list[Entry]
    opponents: list[Opponent]
    elo: float
    rng: np.random.Generator
    aligned: np.ndarray
    stepped: int = 0
    swaps: int = 0
    fresh: frozenset[int] = frozenset()

    def count(self, results: Results, k: float) -> None:
        """Add a rollout's games, and rate everybody by them, one opponent after the other."""
        self.aligned |= results.ended
        counts = zip(self.opponents, results.score.tolist(), results.games.tolist(), strict=True)
        for opponent, score, games in counts:
            if games:
                opponent.score += score
                opponent.games += games
                rated = moved(self.elo, opponent.entry.elo, score / games, k)
                self.elo, opponent.entry.elo = rated

    def replace(self, b: int, entry: Entry, step: int) -> None:
        """Have opponent ``b``, from 0, act by other weights, with counters that begin anew."""
        opponent = self.opponents[b]
        if entry is not opponent.entry:
            self.fresh |= {b + 1}
        opponent.entry, opponent.started = entry, step
        opponent.score, opponent.games = 0.0, 0
        opponent.pending, opponent.waited = None, 0
        self.swaps += 1
