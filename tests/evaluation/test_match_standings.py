"""Intervals and Elo ratings, compared with numbers worked out by hand."""

import math

import pytest

from puffer_mlx.evaluation.results import PairResult, Tally, elo, wilson


def test_the_score_counts_draws_as_half():
    tally = Tally(wins=3, draws=4, losses=1)
    assert (tally.games, tally.score) == (8, 5 / 8)
    result = PairResult((tally, Tally(1, 1, 1)), 9)
    assert result.total == Tally(4, 5, 2)
    low, high = wilson(result.total)
    assert (
        str(result)
        == f"4 wins, 5 draws, 2 losses: score 0.591 ({low:.3f} to {high:.3f}), stochastic"
    )


def test_the_interval_is_wilsons():
    """For 0 of 10 it is 0 to z^2 / (10 + z^2); for a half it is symmetric."""
    low, high = wilson(Tally(0, 0, 10))
    assert (low, high) == (0, pytest.approx(3.841459 / 13.841459, abs=1e-7))
    assert wilson(Tally(10, 0, 0)) == (pytest.approx(1 - high), pytest.approx(1))
    low, high = wilson(Tally(40, 20, 40))  # 0.5 ± z / 2 / sqrt(100 + z^2)
    assert (low, high) == pytest.approx((0.403832, 0.596168), abs=1e-6)
    low, high = wilson(Tally(70, 0, 30))  # a table's: 0.6042, 0.7811
    assert (low, high) == pytest.approx((0.6042, 0.7811), abs=1e-4)


def test_two_ratings_are_the_odds_with_a_draw_added():
    """(90 + 1/2) to (9 + 1/2); each rating is half of the difference."""
    half = 200 * math.log10(90.5 / 9.5)
    assert elo({(0, 1): Tally(90, 0, 9)}, 2) == pytest.approx([half, -half])
    assert elo({(0, 1): Tally(9, 0, 90)}, 2) == pytest.approx([-half, half])
    assert elo({(0, 1): Tally(80, 20, 0)}, 2) == pytest.approx(  # draws are half a win
        [200 * math.log10(90.5 / 10.5), -200 * math.log10(90.5 / 10.5)]
    )
    assert elo({(0, 1): Tally(5, 7, 5)}, 2) == pytest.approx([0, 0])
    never_lost = elo({(0, 1): Tally(4096, 0, 0)}, 2)
    assert never_lost[0] == pytest.approx(200 * math.log10(4096.5 / 0.5))


def test_ratings_of_three_players_are_their_strengths():
    """Strengths 4 : 2 : 1 exactly: 2/3, 4/5 and 2/3 of the points, the added draw among them."""
    points = {(0, 1): (2, 1), (1, 2): (2, 1), (0, 2): (4, 1)}
    results = {}
    for pair, (mine, its) in points.items():
        games = 3 * 5 * 100
        won = games * mine // (mine + its)
        results[pair] = Tally(won - 1, 1, games - won - 1)  # and half of the added draw
    step = 400 * math.log10(2)
    assert elo(results, 3) == pytest.approx([step, 0, -step], abs=1e-4)
