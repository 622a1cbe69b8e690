"""A league's parts: ratings, draws of opponents, full pools, logs, and saved states."""

import json

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_league_parity import EACH, KEYS, TAGS, B, E, league, recorded, steps_of, weights

from puffer_mlx.errors import UserError
from puffer_mlx.training.game_results import Results
from puffer_mlx.training.league import League
from puffer_mlx.training.league_table import (
    PoolEntry,
    draw_by_age,
    draw_uniform,
    expected,
    thinned,
    updated_ratings,
)

NOBODY = np.zeros(E, bool)
QUICK = {**KEYS, "min_games": 4, "max_size": 6}


def result(score: list[float], games: list[int], ended: np.ndarray = NOBODY) -> Results:
    return Results(np.array(score, np.float64), np.array(games, np.int64), ended)


def test_ratings_follow_elos_formula():
    """Check that 400 points are odds of 10 to 1."""
    assert expected(0, 0) == 0.5
    assert expected(400, 0) == pytest.approx(10 / 11)
    assert updated_ratings(0, 400, 1, 16) == pytest.approx((160 / 11, 400 - 160 / 11))
    assert updated_ratings(50, 50, 0.5, 16) == (50, 50)
    assert sum(updated_ratings(3, 80, 0.7, 32)) == pytest.approx(83)


def test_a_full_pool_loses_every_second_entry_of_its_older_half():
    entries = [PoolEntry(None, i, 0.0) for i in range(10)]
    assert [e.step for e in thinned(entries, 9)] == [1, 3, 5, 6, 7, 8, 9]
    assert thinned(entries, 10) is entries
    assert [e.step for e in thinned(entries[:2], 1)] == [1]
    assert [e.step for e in thinned(entries[:3], 2)] == [1, 2]
    for most in range(1, 40):
        assert len(thinned([PoolEntry(None, i, 0.0) for i in range(most + 1)], most)) <= most


def test_newer_entries_are_drawn_more_often_except_the_newest_five():
    """Check the weights 1, 1.414, 1.732 and 2 of the first 4 of 9."""
    rng = np.random.default_rng(0)
    entries = [PoolEntry(None, i, 0.0) for i in range(9)]
    drawn = np.bincount([draw_by_age(entries, rng).step for _ in range(20000)], minlength=9)
    assert drawn[4:].sum() == 0
    shares = np.sqrt([1, 2, 3, 4]) / np.sqrt([1, 2, 3, 4]).sum()
    np.testing.assert_allclose(drawn[:4] / 20000, shares, atol=0.015)
    assert {draw_by_age(entries[:5], rng).step for _ in range(200)} == set(range(5))
    assert {draw_by_age(entries[:6], rng).step for _ in range(50)} == {0}
    uniform = np.bincount([draw_uniform(entries, rng).step for _ in range(20000)])
    np.testing.assert_allclose(uniform / 20000, 1 / 9, atol=0.01)


def test_a_beaten_opponent_is_replaced_after_each_of_its_environments_has_ended_a_game():
    """Opponent 3 has environments 6 and 11."""
    made = league(rules="puffer4", **QUICK)
    both, one, other = (np.isin(np.arange(E), which) for which in ([6, 11], [6], [11]))
    made.after(EACH, result([0, 0, 3.5], [0, 0, 4], both), weights(1))  # beaten; now it counts
    third = made.table.opponents[2]
    assert third.pending is not None and made.replaced == frozenset()
    assert (third.winrate_at_swap, third.epochs_to_align) == (0.875, None)
    assert steps_of(made) == ([0, 0, 0], [0, 1])  # and the learner's weights are an entry
    third.pending = made.table.pool[1]
    made.after(2 * EACH, result([0, 0, 1], [0, 0, 1], one), weights(2))
    made.after(3 * EACH, result([0, 0, 0], [0, 0, 1], one), weights(3))
    assert steps_of(made)[0] == [0, 0, 0] and third.games == 6
    made.after(4 * EACH, result([0, 0, 0], [0, 0, 1], other), weights(4))
    assert steps_of(made)[0] == [0, 0, 1] and made.replaced == {3}
    assert (third.games, third.score, third.epochs_to_align, third.started) == (0, 0, 3, 4 * EACH)
    logs = made.after(5 * EACH, result([0, 0, 0], [0, 0, 0]), weights(5))
    assert made.replaced == frozenset()
    assert (logs["pool/epochs_to_align_bank_2"], logs["pool/winrate_at_swap_bank_2"]) == (3, 0.875)
    assert logs["pool/swaps"] == 1 and "pool/winrate_bank_2" not in logs


def test_logs_have_the_win_rates_and_ratings_of_each_opponent():
    made = league(rules="puffer4", **KEYS)
    made.after(0, result([1, 0, 2], [2, 0, 2]), weights(0))
    logs = made.after(EACH, result([2, 0, 0], [2, 0, 0]), weights(1))
    for name in "pool/winrate", "env/historical_winrate":
        assert (logs[f"{name}_bank_0"], logs[f"{name}_bank_2"], logs[name]) == (0.75, 1, 0.875)
        assert f"{name}_bank_1" not in logs
    assert (logs["pool/size"], logs["pool/num_banks"], logs["pool/swaps"]) == (1, B, 0)
    assert logs["env/elo"] == made.table.elo > KEYS["elo_init"] > logs["pool/opponent_elo_bank_1"]
    assert all(isinstance(value, float | int) for value in logs.values())


@pytest.mark.parametrize("rules", ["puffer4", "puffer5"])
def test_a_restored_league_decides_as_the_one_that_was_saved(rules):
    """Ten copies of puffer4's begin where some, not all, games of an opponent have ended."""
    keys = {**QUICK, "opp_timeout_steps": 11 * EACH}
    made, others = league(rules=rules, **keys), []
    for call, each in enumerate(recorded(300, seed=5, skill=0.75)):
        logs = made.after(call * EACH, each, weights(call))
        for other in others:
            assert other.after(call * EACH, each, weights(call)) == logs
            assert made.replaced == other.replaced and steps_of(made) == steps_of(other)
        shares = [made.table.aligned[np.array(TAGS) == b + 1].mean() for b in range(B)]
        waits = [one.pending is not None for one in made.table.opponents]
        between = any(w and 0 < s < 1 for w, s in zip(waits, shares, strict=True))
        if len(others) < 10 and (between or (rules == "puffer5" and call % 29 == 0)):
            others.append(league(rules=rules, **{**keys, "seed": 8}))
            go_on(others[-1], made)
            assert others[-1].replaced == made.replaced
    assert len(others) == 10 and made.table.swaps > 5
    assert all(other.state()[1] == made.state()[1] for other in others)


def go_on(again: League, made: League) -> None:
    arrays, numbers = made.state()
    arrays = {name: mx.array(np.array(array)) for name, array in arrays.items()}
    again.restore(arrays, json.loads(json.dumps(numbers)))


def test_a_state_has_each_entry_once_and_evicted_opponents_too():
    made, seen = league(rules="puffer4", **QUICK), set()
    for call, each in enumerate(recorded(300, seed=6, skill=0.75)):
        made.after(call * EACH, each, weights(call))
        arrays, _ = made.state()
        in_use = {id(one.entry) for one in made.table.opponents}
        in_use |= {id(one.pending) for one in made.table.opponents if one.pending}
        pool = {id(entry) for entry in made.table.pool}
        assert len(arrays) == len(pool | in_use) + 1
        seen.add(bool(in_use - pool))
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("arrays", "numbers", "message"),
    [
        ({}, {"rules": "puffer5"}, "selfplay.rules puffer5, expected puffer4"),
        ({}, {"opponents": [{}, {}]}, "opponents 2, expected 3"),
        ({"0.layer.0": mx.zeros(2)}, {}, r"0.layer.0 is \(2,\), expected \(1,\)"),
        ({"0.layer.0": mx.zeros(1, mx.int32)}, {}, "0.layer.0 is"),
        ({"aligned": mx.zeros(3)}, {}, "environments 3, expected 12"),
        ({"0.layer.0": mx.array([np.nan])}, {}, r"is invalid .*0\.layer\.0 isn't finite"),
    ],
)
def test_a_state_of_another_run_is_refused(arrays, numbers, message):
    made = league(rules="puffer4", **QUICK)
    own_arrays, own_numbers = made.state()
    with pytest.raises(UserError, match=message):
        made.restore({**own_arrays, **arrays}, {**own_numbers, **numbers})


SENSELESS = [
    *((("pool",), []), (("pool",), [-1]), (("pool",), [True]), (("pool",), 0), (("pool",), [5])),
    *((("entries", 0, "elo"), float("nan")), (("entries", 0, "elo"), "high")),
    *((("entries", 0, "step"), -1), (("elo",), float("inf")), (("stepped",), None)),
    *((("swaps",), -1), (("fresh",), [4]), (("fresh",), ["a"]), (("rng", "state"), -1)),
    *((("rng", "state", "state"), 10**60), (("rng", "bit_generator"), "MT19937")),
    *((("opponents", 1, "games"), -1), (("opponents", 1, "score"), None)),
    *((("opponents", 1, "entry"), -1), (("opponents", 1, "pending"), -1)),
    *((("opponents", 1, "started"), 0.5), (("opponents", 1, "winrate_at_swap"), "x")),
    *((("opponents", 1), None), (("opponents",), {"a": 1, "b": 2, "c": 3})),
]


@given(st.sampled_from(SENSELESS) | st.sampled_from(["elo", "rng", "entries", "pool"]))
def test_a_senseless_state_is_refused(change):
    made = league(rules="puffer4", **QUICK)
    arrays, numbers = made.state()
    table = made.table
    damaged = json.loads(json.dumps(numbers))
    if isinstance(change, str):
        del damaged[change]
    else:
        path, value = change
        place = damaged
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    with pytest.raises(UserError, match="saved pool of opponents is invalid"):
        made.restore(arrays, damaged)
    assert made.table is table
