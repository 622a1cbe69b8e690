"""Elo ratings: what a rating expects, and how results move it."""

SPREAD = 400  # points that make the odds 10 to 1


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
