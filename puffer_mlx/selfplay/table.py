"""All that self-play remembers: the pool, the opponents of the moment, ratings, counters."""

from dataclasses import dataclass

import numpy as np

from puffer_mlx.selfplay.pool import Entry
from puffer_mlx.selfplay.ratings import moved
from puffer_mlx.selfplay.results import Results


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
        found = zip(self.opponents, results.score.tolist(), results.games.tolist(), strict=True)
        for opponent, score, games in found:
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
