"""connect4_two against the rules in test_connect4.py, for two agents that take turns."""

import numpy as np
import pytest
from native_envs import Stepper, assert_match_log, bot_of, legal_actions, make
from test_connect4 import COLUMNS, ROWS, dropped, has_four

WAITS = 0


def planes(observation: np.ndarray) -> np.ndarray:
    """Split a two-player connect4 observation: own stones, the other's, the landing cells.

    (3, 6, 7) bool.
    """
    assert observation.dtype == np.uint8 and observation.max() <= 1
    return observation.reshape(3, ROWS, COLUMNS) == 1


def movers(stepper: Stepper) -> np.ndarray:
    """Return which agent moves in each connect4 environment, (E,): it sees landing cells."""
    landing = stepper.rows.observations.reshape(-1, 2, 3, ROWS, COLUMNS)[:, :, 2].any(axis=(2, 3))
    assert (landing.sum(axis=1) == 1).all(), "one of two moves"
    return landing.argmax(axis=1)


def check_views(own: np.ndarray, other: np.ndarray, masks: np.ndarray) -> None:
    """Check that both connect4 players see the same board (3, 6, 7); masks are (2, 7)."""
    np.testing.assert_array_equal(own[0], other[1])
    np.testing.assert_array_equal(own[1], other[0])
    stones = own[0] | own[1]
    assert not (own[0] & own[1]).any()
    assert (stones[:-1] <= stones[1:]).all(), "a stone hangs in the air"
    resting = np.vstack([stones[1:], np.ones((1, COLUMNS), bool)])
    np.testing.assert_array_equal(own[2], resting & ~stones)
    assert not other[2].any()
    np.testing.assert_array_equal(masks[0] != 0, ~stones[0])
    np.testing.assert_array_equal(np.flatnonzero(masks[1]), [WAITS])


def test_games_follow_the_rules():
    E, rng = 24, np.random.default_rng(0)
    ends = []  # (reward of agent 0, stones)
    with make("connect4_two", total_agents=2 * E) as vec:
        stepper = Stepper(vec)
        for _ in range(150):
            turn, rows = movers(stepper), stepper.rows
            masks = np.array(rows.masks).reshape(E, 2, COLUMNS)
            before = rows.observations.copy().reshape(E, 2, 126)
            actions = legal_actions(stepper, rng)
            stepper.step(actions)
            after = rows.observations.reshape(E, 2, 126)
            rewards, terminals = rows.rewards.reshape(E, 2), rows.terminals.reshape(E, 2)
            for e, m in enumerate(turn):
                own, other = planes(before[e, m]), planes(before[e, 1 - m])
                check_views(own, other, masks[e, [m, 1 - m]])
                stones = own[0] | own[1]
                board = dropped(own[0], stones, int(actions[2 * e + m, 0]))
                won, full = has_four(board), (board | own[1]).all()
                assert (terminals[e] == (won or full)).all()
                assert rewards[e, m] == won and rewards[e, 1 - m] == -won
                if won or full:
                    ends.append((rewards[e, 0], stones.sum() + 1))
                    assert not after[e].reshape(2, 3, 42)[:, :2].any()
                else:
                    np.testing.assert_array_equal(planes(after[e, 1 - m])[1], board)
                    assert planes(after[e, 1 - m])[2].any(), "they take turns"
        log = vec.log()
    results, lengths = np.array(ends).T
    assert len(ends) > 100
    assert_match_log(log, results, lengths)


def test_full_board_is_a_draw():
    """About one random game in 400 is a draw."""
    rng = np.random.default_rng(1)
    drawn = 0
    with make("connect4_two", total_agents=256) as vec:
        stepper = Stepper(vec)
        for _ in range(300):
            stones = stepper.rows.observations[:, :84].sum(axis=1)
            rows = stepper.step(legal_actions(stepper, rng))
            even = (rows.terminals == 1) & (rows.rewards == 0)
            assert (stones[even] == 41).all()
            log = vec.log()
            assert log.get("draw_rate", 0) * log.get("n", 0) == pytest.approx(even.sum() / 2)
            drawn += even.sum() / 2
    assert drawn > 2


def test_games_begin_with_random_stones_in_turns():
    """Each number of stones is as frequent, and no game is over."""
    E, most = 1000, 12
    with make("connect4_two", total_agents=2 * E, env={"opening_stones": most}) as vec:
        stepper = Stepper(vec)
        observations = stepper.rows.observations.reshape(E, 2, 126).copy()
        masks = np.array(stepper.rows.masks).reshape(E, 2, COLUMNS)
        turn = movers(stepper)
        seen = np.zeros(most + 1, int)
        for m, pair, mask in zip(turn, observations, masks, strict=True):
            own, other = planes(pair[m]), planes(pair[1 - m])
            check_views(own, other, mask[[m, 1 - m]])
            assert not has_four(own[0]) and not has_four(own[1])
            assert own[1].sum() - own[0].sum() in (0, 1), "in turns"
            seen[(own[0] | own[1]).sum()] += 1
        assert 420 < turn.sum() < 580, "the first player is random"
        assert (seen > 40).all(), "1000 / 13 of each"
        while not stepper.step(legal_actions(stepper, np.random.default_rng(0))).terminals.any():
            pass
        again = stepper.rows.observations[stepper.rows.terminals == 1][:, :84].sum(axis=1)
        assert (again <= most).all() and again.any(), "the next game, too"


def test_unknown_or_full_column_loses_and_the_waiting_players_is_ignored():
    """Without [env] the board is empty at first."""
    unknown = np.array([-1.0, 7.0, np.nan, np.inf, 1e30])
    with make("connect4_two", total_agents=10, env={}) as vec:
        stepper = Stepper(vec)
        assert not stepper.rows.observations[:, :84].any()
        for column in unknown, *[4] * ROWS, 4:
            mover = np.arange(5) * 2 + movers(stepper)
            stones = stepper.rows.observations[mover, :84].sum(axis=1)
            actions = unknown.repeat(2)
            actions[mover] = column
            rows = stepper.step(actions)
            if column is unknown or stones[0] == ROWS:
                assert (rows.rewards[mover] == -1).all() and rows.rewards.sum() == 0
                assert (rows.terminals == 1).all()
            else:
                assert not rows.terminals.any()


def test_mover_sees_the_observation_of_connect4():
    """So a policy of one plays in the other."""
    with make("connect4_two", total_agents=2) as two, make("connect4", total_agents=64) as one:
        alone, both = Stepper(one).rows, Stepper(two)
        empty = alone.observations[~alone.observations[:, 42:84].any(axis=1)][0]
        np.testing.assert_array_equal(both.rows.observations[movers(both)[0]], empty)
        reply = next(row for row in alone.observations if row[42:84].any())
        column = int(planes(reply)[1].any(axis=0).argmax())
        both.step(column)
        np.testing.assert_array_equal(both.rows.observations[movers(both)[0]], reply)


def test_scripted_player_wins_or_blocks_leftmost():
    """The leftmost winning column, else the leftmost that stops the other, else any open one."""
    choose = bot_of("connect4_two")
    rng, counts = np.random.default_rng(2), np.zeros(3, int)
    with make("connect4_two", total_agents=128) as vec:
        stepper = Stepper(vec)
        for _ in range(60):
            rows = stepper.rows
            assert rows.masks is not None
            found = choose(rows.observations, rows.masks, 1.0, rng)
            blind = choose(rows.observations, rows.masks, 0.0, rng)
            for i, (observation, mask) in enumerate(
                zip(rows.observations, rows.masks, strict=True)
            ):
                assert mask[int(found[i, 0])] and mask[int(blind[i, 0])]
                own, others, landing = planes(observation)
                if not landing.any():
                    continue
                stones = own | others
                winning, threats = (
                    [c for c in range(COLUMNS) if mask[c] and has_four(dropped(board, stones, c))]
                    for board in (own, others)
                )
                wanted = winning or threats
                counts += [bool(winning), bool(threats and not winning), not wanted]
                if wanted:
                    assert found[i, 0] == wanted[0]
            stepper.step(legal_actions(stepper, rng))
    assert (counts > 100).all()
