"""A league: decisions of both releases' rules written again, logs, and saved states.

The rules are written again here, as plainly as possible: weights are the number of the call when
the learner had them, and a pool is a list of [number, rating]. Only NumPy's generator is shared.
"""

import json
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from puffer_mlx import config as c
from puffer_mlx.errors import UserError
from puffer_mlx.rollout.policy_assignment import PolicyAssignment
from puffer_mlx.training.game_results import GameResults
from puffer_mlx.training.league import League

TAGS = [0, 0, 1, 1, 1, 2, 3, 0, 1, 2, 2, 3]  # of 12 environments: 4, 3 and 2 with opponents
B, E = 3, len(TAGS)
EACH = 1000  # steps of a rollout


def assignment() -> PolicyAssignment:
    policy = [agent * tag for tag in TAGS for agent in range(2)]
    tags = np.array(TAGS, np.int32)
    return PolicyAssignment(
        np.array(policy, np.int32), np.repeat(np.arange(E, dtype=np.int32), 2), tags
    )


def weights(number: int) -> Any:
    return {"layer": [mx.array([float(number)])]}


def recorded(calls: int, seed: int, skill: float) -> list[GameResults]:
    """Return random game results of self-play, some without and some with all games ended."""
    rng = np.random.default_rng(seed)
    made = []
    for call in range(calls):
        ended = (rng.random(E) < (0.0 if call % 7 == 3 else rng.random())) & (np.array(TAGS) > 0)
        games = np.bincount(np.array(TAGS), ended * rng.integers(1, 9, E), B + 1)[1:]
        wins = rng.binomial(games.astype(int), skill)
        draws = rng.binomial(games.astype(int) - wins, 0.3)
        made.append(GameResults(wins + draws / 2, games.astype(np.int64), ended))
    return made


def league(**keys: Any) -> League:
    """Return a self-play league of 3 opponents with given keys of [selfplay].

    By default it follows 5.0's rules, every 2 epochs.
    """
    config = c.load("connect4_two")
    config.selfplay.enabled = True
    for key, value in keys.items():
        setattr(config.selfplay, key, value)
    config.vec.num_frozen_banks, config.vec.num_policies = B, B + 1
    config.base.checkpoint_interval = 2
    config.vec.total_agents, config.train.horizon = EACH // 10, 10
    return League(config, assignment(), weights(0))


def rules_4(keys: dict[str, Any], results: list[GameResults]) -> list[tuple]:
    """Simulate PufferLib 4.0's rules for opponents; return their decisions at each rollout."""
    rng = np.random.default_rng(keys["seed"])
    entries = [[0, keys["elo_init"]]]
    mine = keys["elo_init"]
    banks = [
        {"now": entries[0], "score": 0, "n": 0, "since": 0, "next": None, "ok": set()}
        for _ in range(B)
    ]
    taken, found = 0, []

    def snapshot(call: int) -> None:
        nonlocal taken, entries
        entries.append([call, mine])
        if len(entries) > keys["max_size"]:
            older, newer = entries[: len(entries) // 2], entries[len(entries) // 2 :]
            entries = [entry for i, entry in enumerate(older) if i % 2 == 1] + newer
        taken = call * EACH

    for call, result in enumerate(results):
        step = call * EACH
        for b, bank in enumerate(banks):
            w, m = result.score[b], result.games[b]
            if m > 0:
                bank["score"] += w
                bank["n"] += m
                expected = 1 / (1 + 10 ** ((bank["now"][1] - mine) / 400))
                change = keys["elo_k"] * (w / m - expected)
                mine += change
                bank["now"][1] -= change  # the entry's, wherever it plays
            if bank["next"] is not None:
                bank["ok"] |= {e for e in range(E) if result.ended[e]}
        if keys["snapshot_interval"] and step - taken >= keys["snapshot_interval"]:
            snapshot(call)
        for b, bank in enumerate(banks):
            environments = {e for e in range(E) if TAGS[e] == b + 1}
            if bank["next"] is not None:
                if environments <= bank["ok"]:
                    bank.update(now=bank["next"], next=None, score=0, n=0, since=step)
                continue
            won = bank["n"] > 0 and bank["n"] >= keys["min_games"]
            won = won and bank["score"] / bank["n"] >= keys["swap_winrate"]
            wait = keys["opp_timeout_steps"]
            if won or (wait and step - bank["since"] >= wait):
                if won and len(entries) < 10:
                    snapshot(call)
                those = entries[:-5] if len(entries) >= 6 else entries
                chances = np.array([(i + 1) ** 0.5 for i in range(len(those))])
                bank["next"] = those[rng.choice(len(those), p=chances / chances.sum())]
                bank["ok"] = set()
        state = [bank["now"][0] for bank in banks], [entry[0] for entry in entries]
        found.append((*state, mine, [entry[1] for entry in entries]))
    return found


def rules_5(keys: dict[str, Any], results: list[GameResults]) -> list[tuple]:
    """Simulate PufferLib 5.0's rules for opponents; return their decisions at each rollout.

    Ratings follow our rules.
    """
    rng = np.random.default_rng(keys["seed"])
    queue, playing, drawn, found = [0], [0] * B, 0, []
    for call in range(len(results)):
        if call > 0 and call % 2 == 0:
            queue.append(call)
            if len(queue) > keys["max_size"]:
                queue.pop(0)
        wait = keys["opp_timeout_steps"]
        if wait and call * EACH - drawn >= wait:
            playing = [queue[rng.integers(len(queue))] for _ in range(B)]
            drawn = call * EACH
        found.append((list(playing), list(queue)))
    return found


KEYS = {
    "max_size": 16,
    "swap_winrate": 0.6,
    "min_games": 50,
    "elo_init": 100.0,
    "elo_k": 16.0,
    "seed": 7,
    "snapshot_interval": 40 * EACH,
    "opp_timeout_steps": 90 * EACH,
}
CASES = {
    "as a run": {},
    "a small pool": {"max_size": 5, "snapshot_interval": 10 * EACH},
    "one entry": {"max_size": 1},
    "beaten at once": {"min_games": 0, "swap_winrate": 0.0},
    "no snapshots, no time": {"snapshot_interval": 0, "opp_timeout_steps": 0},
}


def steps_of(made: League) -> tuple[list[int], list[int]]:
    """Return the numbers of which a league's opponents' and pool's weights were made."""
    own = [int(tree["layer"][0].item()) for tree in made.opponents]
    pool = [int(entry.weights["layer"][0].item()) for entry in made.table.pool]
    assert [entry.step for entry in made.table.pool] == [number * EACH for number in pool]
    return own, pool


@pytest.mark.parametrize("case", CASES)
def test_puffer4_follows_the_rules_written_again(case):
    keys = {**KEYS, **CASES[case]}
    results = recorded(1000, seed=3, skill=0.55)
    made, changes = league(rules="puffer4", **keys), 0
    for call, (result, expected) in enumerate(zip(results, rules_4(keys, results), strict=True)):
        before = steps_of(made)[0]
        logs = made.finish_rollout(call * EACH, result, weights(call))
        found = *steps_of(made), made.table.elo, [entry.elo for entry in made.table.pool]
        assert found == expected, call
        assert (logs["env/elo"], logs["pool/size"]) == (expected[2], len(expected[1]))
        changed = {b + 1 for b in range(B) if expected[0][b] != before[b]}
        assert changed <= made.replaced and len(expected[1]) <= keys["max_size"]
        changes += len(changed)
    assert changes > 20 or case in ("one entry", "no snapshots, no time")


@pytest.mark.parametrize("case", [{}, {"max_size": 1}])
def test_puffer5_follows_the_rules_written_again(case):
    keys = {**KEYS, "opp_timeout_steps": 7 * EACH, **case}
    results = recorded(400, seed=4, skill=0.6)
    made = league(rules="puffer5", **keys)
    for call, (result, expected) in enumerate(zip(results, rules_5(keys, results), strict=True)):
        before = steps_of(made)[0]
        made.finish_rollout(call * EACH, result, weights(call))
        assert steps_of(made) == expected, call
        assert made.replaced >= {b + 1 for b in range(B) if expected[0][b] != before[b]}


# ---- logs and saved states -----------------------------------------------------------------------

NOBODY = np.zeros(E, bool)
QUICK = {**KEYS, "min_games": 4, "max_size": 6}


@pytest.fixture(scope="module")
def quick() -> League:
    return league(rules="puffer4", **QUICK)


def result(score: list[float], games: list[int], ended: np.ndarray = NOBODY) -> GameResults:
    return GameResults(np.array(score, np.float64), np.array(games, np.int64), ended)


def test_a_beaten_opponent_is_replaced_after_each_of_its_environments_has_ended_a_game():
    """Opponent 3 has environments 6 and 11."""
    made = league(rules="puffer4", **QUICK)
    both, one, other = (np.isin(np.arange(E), which) for which in ([6, 11], [6], [11]))
    made.finish_rollout(
        EACH, result([0, 0, 3.5], [0, 0, 4], both), weights(1)
    )  # beaten; now it counts
    third = made.table.opponents[2]
    assert third.pending is not None and made.replaced == frozenset()
    third.pending = made.table.pool[1]
    made.finish_rollout(2 * EACH, result([0, 0, 1], [0, 0, 1], one), weights(2))
    made.finish_rollout(3 * EACH, result([0, 0, 0], [0, 0, 1], one), weights(3))
    assert steps_of(made)[0] == [0, 0, 0]
    made.finish_rollout(4 * EACH, result([0, 0, 0], [0, 0, 1], other), weights(4))
    assert steps_of(made)[0] == [0, 0, 1] and made.replaced == {3}
    logs = made.finish_rollout(5 * EACH, result([0, 0, 0], [0, 0, 0]), weights(5))
    assert made.replaced == frozenset()
    assert (logs["pool/epochs_to_align_bank_2"], logs["pool/winrate_at_swap_bank_2"]) == (3, 0.875)
    assert logs["pool/swaps"] == 1 and "pool/winrate_bank_2" not in logs


def test_logs_have_the_win_rates_and_ratings_of_each_opponent():
    made = league(rules="puffer4", **KEYS)
    made.finish_rollout(0, result([1, 0, 2], [2, 0, 2]), weights(0))
    logs = made.finish_rollout(EACH, result([2, 0, 0], [2, 0, 0]), weights(1))
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
        logs = made.finish_rollout(call * EACH, each, weights(call))
        for other in others:
            assert other.finish_rollout(call * EACH, each, weights(call)) == logs
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
