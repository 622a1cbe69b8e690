"""A league's parts: ratings, draws of opponents, full pools, logs, and saved states."""

import json

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_league_parity import EACH, KEYS, TAGS, B, E, league, recorded, steps_of, weights

from puffer_mlx.errors import UserError
from puffer_mlx.training.game_results import Results
from puffer_mlx.training.league import League

NOBODY = np.zeros(E, bool)
QUICK = {**KEYS, "min_games": 4, "max_size": 6}


@pytest.fixture(scope="module")
def quick() -> League:
    return league(rules="puffer4", **QUICK)


def result(score: list[float], games: list[int], ended: np.ndarray = NOBODY) -> Results:
    return Results(np.array(score, np.float64), np.array(games, np.int64), ended)


def test_a_beaten_opponent_is_replaced_after_each_of_its_environments_has_ended_a_game():
    """Opponent 3 has environments 6 and 11."""
    made = league(rules="puffer4", **QUICK)
    both, one, other = (np.isin(np.arange(E), which) for which in ([6, 11], [6], [11]))
    made.after(EACH, result([0, 0, 3.5], [0, 0, 4], both), weights(1))  # beaten; now it counts
    third = made.table.opponents[2]
    assert third.pending is not None and made.replaced == frozenset()
    third.pending = made.table.pool[1]
    made.after(2 * EACH, result([0, 0, 1], [0, 0, 1], one), weights(2))
    made.after(3 * EACH, result([0, 0, 0], [0, 0, 1], one), weights(3))
    assert steps_of(made)[0] == [0, 0, 0]
    made.after(4 * EACH, result([0, 0, 0], [0, 0, 1], other), weights(4))
    assert steps_of(made)[0] == [0, 0, 1] and made.replaced == {3}
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


@pytest.mark.parametrize(
    ("arrays", "numbers", "message"),
    [
        ({}, {"rules": "puffer5"}, "selfplay.rules puffer5, expected puffer4"),
        ({}, {"opponents": [{}, {}]}, "opponents 2, expected 3"),
        ({"0.layer.0": mx.zeros(2)}, {}, r"0.layer.0 is \(2,\), expected \(1,\)"),
        ({"aligned": mx.zeros(3)}, {}, "environments 3, expected 12"),
        ({"0.layer.0": mx.array([np.nan])}, {}, r"is invalid .*0\.layer\.0 isn't finite"),
    ],
)
def test_a_state_of_another_run_is_refused(quick, arrays, numbers, message):
    own_arrays, own_numbers = quick.state()
    with pytest.raises(UserError, match=message):
        quick.restore({**own_arrays, **arrays}, {**own_numbers, **numbers})


PLACES = [
    *(("pool",), ("pool", 0), ("entries",), ("entries", 0), ("entries", 0, "elo"), ("elo",)),
    *(("entries", 0, "step"), ("stepped",), ("swaps",), ("fresh",), ("rng",), ("rng", "state")),
    *(("rng", "state", "state"), ("rng", "bit_generator"), ("opponents",), ("opponents", 1)),
    *(("opponents", 1, key) for key in ("games", "score", "entry", "started", "waited")),
]


@settings(max_examples=100)
@given(st.sampled_from(PLACES), st.sampled_from([None, float("nan"), "x", [-1], {"a": 1}]))
@example(("swaps",), -1)
@example(("opponents", 1, "games"), -1)
@example(("rng", "state", "state"), 10**60)
@example(("pool",), [])
@example(("fresh",), [4])
@example(("opponents", 1, "pending"), -1)
@example(("opponents", 1, "winrate_at_swap"), "x")
def test_a_senseless_state_is_refused(quick, path, value):
    arrays, numbers = quick.state()
    table = quick.table
    place = damaged = json.loads(json.dumps(numbers))
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(UserError, match="the saved pool of opponents"):
        quick.restore(arrays, damaged)
    assert quick.table is table
