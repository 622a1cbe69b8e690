"""connect4 against the rules of the game, written down a second time for boards of cells."""

from collections import Counter

import numpy as np
import pytest
from native_envs import Stepper, make

ROWS, COLUMNS = 6, 7
LINES = np.array(  # (69, 4), indices of the cells of a flat board
    [
        (row + down * np.arange(4)) * COLUMNS + column + right * np.arange(4)
        for down, right in ((0, 1), (1, 0), (1, 1), (-1, 1))
        for row in range(ROWS)
        for column in range(COLUMNS)
        if 0 <= row + 3 * down < ROWS and column + 3 * right < COLUMNS
    ]
)


def has_four(board: np.ndarray) -> bool:
    """Return True if a board (6, 7), the top row first, has four cells in a line."""
    return bool(board.ravel()[LINES].all(axis=1).any())


def open_columns(stones: np.ndarray) -> list[int]:
    return [column for column in range(COLUMNS) if not stones[0, column]]


def dropped(board: np.ndarray, stones: np.ndarray, column: int) -> np.ndarray:
    """Return a player's connect4 board after a move, given the stones of both before it."""
    after = board.copy()
    after[ROWS - 1 - int(stones[:, column].sum()), column] = True
    return after


def wins(board: np.ndarray, stones: np.ndarray) -> list[int]:
    """Return the columns in which a player would win connect4 at once."""
    return [c for c in open_columns(stones) if has_four(dropped(board, stones, c))]


def planes(observation: np.ndarray) -> np.ndarray:
    """Split connect4's observation: the agent's stones, the opponent's, the landing cells.

    (3, 6, 7) bool.
    """
    assert observation.dtype == np.uint8 and observation.max() == 1
    return observation.reshape(3, ROWS, COLUMNS) == 1


def check_board(observation: np.ndarray, mask: np.ndarray) -> None:
    """Check a connect4 observation: stones rest on each other; landing cells and mask fit."""
    own, others, landing = planes(observation)
    stones = own | others
    assert not (own & others).any()
    assert (stones[:-1] <= stones[1:]).all(), "a stone hangs in the air"
    resting = np.vstack([stones[1:], np.ones((1, COLUMNS), bool)])
    np.testing.assert_array_equal(landing, resting & ~stones)
    np.testing.assert_array_equal(mask, ~stones[0])
    assert int(others.sum()) - int(own.sum()) in (0, 1)  # it is the agent's turn


def masks_of(stepper: Stepper) -> np.ndarray:
    """Return the mask of legal connect4 columns, (N, 7), non-zero if legal."""
    assert stepper.rows.masks is not None
    return stepper.rows.masks


def legal_moves(stepper: Stepper, wishes: np.ndarray) -> np.ndarray:
    """Return each agent's legal connect4 column with the largest wish (N, 7): (N, 1) float32."""
    return np.argmax(wishes * (masks_of(stepper) != 0), axis=1)[:, None].astype(np.float32)


class Referee:
    """Checks steps of connect4 games and counts what the scripted opponent did."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()

    def check(self, before, column, after, reward: float, terminal: float) -> None:
        own, others, _ = planes(before)
        own = dropped(own, own | others, column)
        stones = own | others
        if has_four(own):
            assert (reward, terminal) == (1, 1)
            self.count["won"] += 1
            return
        if stones.all():
            assert (reward, terminal) == (0, 1)
            self.count["drawn"] += 1
            return
        self.answer(own, others, after, reward, terminal)

    def answer(self, own, others, after, reward: float, terminal: float) -> None:
        """Check the scripted connect4 opponent's answer to a move, and count it."""
        stones = own | others
        winning, threats = wins(others, stones), wins(own, stones)
        self.count["opponent_could"] += bool(winning)
        if terminal:
            lost = reward == -1
            assert lost or (reward == 0 and stones.sum() == ROWS * COLUMNS - 1)
            assert winning if lost else True
            self.count["opponent_did"] += lost
            self.count["lost" if lost else "drawn"] += 1
            return
        assert reward == 0
        now, new, _ = planes(after)
        np.testing.assert_array_equal(now, own)
        options = {c: dropped(others, stones, c) for c in open_columns(stones)}
        chosen = [c for c, board in options.items() if (board == new).all()]
        assert len(chosen) == 1, "the opponent made one legal move"
        assert chosen[0] not in winning
        if threats and not winning:
            self.count["could_block"] += 1
            self.count["did_block"] += chosen[0] in threats


def play(skill: float, agents: int, steps: int) -> tuple[Counter[str], dict[str, float]]:
    """Play random connect4 games and check each step; return the counts and the log."""
    rng = np.random.default_rng(int(10 * skill))
    referee = Referee()
    with make("connect4", total_agents=agents, env={"opponent_skill": skill}) as vec:
        stepper = Stepper(vec)
        rows = stepper.rows
        for _ in range(steps):
            before, masks = rows.observations.copy(), masks_of(stepper).copy()
            for observation, mask in zip(before, masks, strict=True):
                check_board(observation, mask)
            moves = legal_moves(stepper, rng.random(masks.shape))
            stepper.step(moves)
            for i in range(agents):
                referee.check(
                    before[i],
                    int(moves[i, 0]),
                    rows.observations[i],
                    float(rows.rewards[i]),
                    float(rows.terminals[i]),
                )
        return referee.count, vec.log()


def test_skilled_opponent_wins_and_blocks_whenever_it_can():
    count, log = play(1.0, agents=24, steps=60)
    assert count["opponent_did"] == count["opponent_could"] == count["lost"] > 50
    assert count["did_block"] == count["could_block"] > 10
    games = count["won"] + count["lost"] + count["drawn"]
    assert log["n"] == games
    assert log["score"] == pytest.approx((count["won"] - count["lost"]) / games)
    assert log["episode_return"] == log["score"]
    assert log["perf"] == pytest.approx((count["won"] + 0.5 * count["drawn"]) / games)
    assert log["draws"] == pytest.approx(count["drawn"] / games)
    assert 3 < log["episode_length"] < 21


def test_opponent_with_less_skill_misses_wins():
    """With half a skill it looks half the time, and else wins by chance, 1 in 7 or more."""
    count, log = play(0.0, agents=24, steps=60)
    assert 0 < count["opponent_did"] < 0.6 * count["opponent_could"]
    assert 0 < count["did_block"] < 0.6 * count["could_block"]
    assert abs(log["score"]) < 0.35
    count, _ = play(0.5, agents=24, steps=60)
    assert 0.45 < count["opponent_did"] / count["opponent_could"] < 0.8


def test_first_player_is_random():
    with make("connect4", total_agents=400) as vec:
        begun = Stepper(vec).rows.observations[:, 42:84].sum(axis=1)
        assert set(begun) == {0, 1} and 150 < begun.sum() < 250


def test_full_board_is_a_draw():
    """About one random game in 400 is a draw."""
    rng = np.random.default_rng(0)
    with make("connect4", total_agents=64, env={"opponent_skill": 0.0}) as vec:
        stepper = Stepper(vec)
        drawn = 0
        for _ in range(500):
            stones = stepper.rows.observations[:, :84].sum(axis=1)
            rows = stepper.step(legal_moves(stepper, rng.random((64, COLUMNS))))
            log, even = vec.log(), (rows.terminals == 1) & (rows.rewards == 0)
            assert log.get("draws", 0) * log.get("n", 0) == pytest.approx(even.sum())
            if log:
                assert log["perf"] == pytest.approx((1 + log["score"]) / 2)
            assert (stones[even] >= 40).all()
            drawn += even.sum()
        assert drawn > 5


def test_unknown_column_loses():
    actions = np.array([[-1.0], [7.0], [np.nan], [np.inf], [-np.inf], [1e30]], np.float32)
    with make("connect4", total_agents=len(actions)) as vec:
        stepper = Stepper(vec)
        rows = stepper.step(actions)
        assert (rows.rewards == -1).all() and (rows.terminals == 1).all()
        log = vec.log()
        assert (log["perf"], log["score"], log["episode_length"]) == (0, -1, 1)
        for row, mask in zip(rows.observations, masks_of(stepper), strict=True):
            check_board(row, mask)
        assert rows.observations[:, :42].sum() == 0  # new games


def test_full_column_loses():
    """Always column 3, until the mask forbids it; ignoring that ends the game."""
    with make("connect4", total_agents=32, env={"opponent_skill": 0.0}) as vec:
        stepper = Stepper(vec)
        seen = 0
        for _ in range(60):
            full = masks_of(stepper)[:, 3] == 0
            rows = stepper.step(3)
            assert (rows.rewards[full] == -1).all() and (rows.terminals[full] == 1).all()
            seen += full.sum()
        assert seen > 0
