"""What results of games say of all players: Elo ratings."""

from collections.abc import Mapping

import numpy as np

from puffer_mlx.match.tally import Tally

ELO = 400.0  # points for odds of ten to one
SWEEPS = 10_000
CLOSE = 1e-7  # Elo points


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
