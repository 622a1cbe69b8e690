"""Games counted from rewards and terminals: against a loop over agents and steps."""

import numpy as np
import pytest

from puffer_mlx.errors import UserError
from puffer_mlx.rollout.seats import Seats
from puffer_mlx.training.game_results import GameCounter


def seats_of(tags: list[int], each: int) -> Seats:
    """Environments of so many agents; the opponent has the second half."""
    policy = [tag * (seat >= each // 2) for tag in tags for seat in range(each)]
    owners = np.repeat(np.arange(len(tags)), each)
    return Seats(*(np.array(a, np.int32) for a in (policy, owners, tags)))


def test_a_win_a_draw_and_a_loss():
    seats = seats_of([0, 1, 2], 2)
    rewards, terminals = np.zeros((3, 6), np.float32), np.zeros((3, 6), np.float32)
    rewards[0, :2], terminals[0, :2] = (1, -1), 1  # nobody's: the learner plays both seats
    rewards[1, 2:4], terminals[1, 2:4] = (1, -1), 1  # a win against opponent 1
    terminals[2, 2:4] = 1  # and a draw
    rewards[2, 4:6], terminals[2, 4:6] = (-1, 1), 1  # a loss against opponent 2
    found = GameCounter(seats).take(rewards, terminals)
    assert found.score.tolist() == [1.5, 0.0]
    assert found.games.tolist() == [2, 1]
    assert found.ended.tolist() == [False, True, True]


def test_a_game_is_carried_from_rollout_to_rollout_and_through_a_state():
    """Rewards 0.25 for the learner, later 0.5 for the opponent: lost, though it led before."""
    seats, still = seats_of([1], 2), np.zeros((2, 2), np.float32)
    first, last = still.copy(), still.copy()
    first[1, 0], last[0, 1] = 0.25, 0.5
    over = still.copy()
    over[1] = 1
    scores = GameCounter(seats)
    assert scores.take(first, still).games.tolist() == [0]
    again = GameCounter(seats)
    again.restore(scores.state())
    for each in scores, again:
        found = each.take(last, over)
        assert (found.score.tolist(), found.games.tolist()) == ([0.0], [1])
    assert GameCounter(seats).take(still, over).score.tolist() == [0.5]


def test_an_episode_that_ends_for_one_agent_alone_is_no_game():
    """An agent that is away has terminal 1 in every row, until its environment begins anew."""
    terminals = np.zeros((4, 2), np.float32)
    terminals[1:, 0] = 1
    terminals[3, 1] = 1
    rewards = np.zeros((4, 2), np.float32)
    rewards[2, 1] = 1
    found = GameCounter(seats_of([1], 2)).take(rewards, terminals)
    assert (found.score.tolist(), found.games.tolist()) == ([0.0], [1])


def test_as_a_loop_over_steps():
    """Teams of 2, three rollouts; rewards are eighths, whose sums are exact in any order."""
    rng = np.random.default_rng(3)
    tags, each, T = [0, 2, 1, 0, 1, 2], 4, 16
    seats = seats_of(tags, each)
    scores, sums = GameCounter(seats), np.zeros(len(tags))
    for _ in range(3):
        rewards = rng.integers(-8, 9, (T, len(tags) * each)).astype(np.float32) / 8
        terminals = np.repeat(rng.random((T, len(tags))) < 0.2, each, axis=1).astype(np.float32)
        score, games, ended = np.zeros(2), np.zeros(2, int), np.zeros(len(tags), bool)
        for t in range(T):
            for env, tag in enumerate(tags):
                mine, theirs = rewards[t, env * each : (env + 1) * each].reshape(2, 2).sum(axis=1)
                sums[env] += mine - theirs
                if terminals[t, env * each]:
                    if tag:
                        score[tag - 1] += (1 + np.sign(sums[env])) / 2
                        games[tag - 1] += 1
                        ended[env] = True
                    sums[env] = 0
        found = scores.take(rewards, terminals)
        assert (found.score == score).all() and (found.games == games).all()
        assert (found.ended == ended).all()


def test_rewards_that_are_no_numbers_decide_nothing():
    """Ratings stay numbers: a draw, and the next game counts as ever."""
    seats = seats_of([1], 2)
    scores = GameCounter(seats)
    rewards, over = np.array([[np.nan, 0], [1, 0]], np.float32), np.ones((2, 2), np.float32)
    assert scores.take(rewards, over).score.tolist() == [1.5]


def test_results_of_other_seats_are_refused():
    scores = GameCounter(seats_of([1, 1], 2))
    with pytest.raises(UserError, match="of 1 environments with opponents, expected 2"):
        scores.restore(GameCounter(seats_of([1, 0], 2)).state())
