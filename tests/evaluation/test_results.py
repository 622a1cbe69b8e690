"""Games counted from rewards and terminals, compared with a loop over agents and steps."""

import numpy as np
import pytest

from puffer_mlx.errors import UserError
from puffer_mlx.rollout.policy_assignment import PolicyAssignment
from puffer_mlx.training.game_results import GameCounter


def assignment_of(tags: list[int], each: int) -> PolicyAssignment:
    """Return the self-play assignment for environments with ``each`` agents and these tags."""
    policy = [tag * (agent >= each // 2) for tag in tags for agent in range(each)]
    owners = np.repeat(np.arange(len(tags)), each)
    return PolicyAssignment(*(np.array(a, np.int32) for a in (policy, owners, tags)))


def test_a_game_ends_when_all_agents_have_ended():
    """An absent agent has terminal 1 in every row until its environment restarts."""
    terminals = np.zeros((4, 2), np.float32)
    terminals[1:, 0] = 1
    terminals[3, 1] = 1
    rewards = np.zeros((4, 2), np.float32)
    rewards[2, 1] = 1
    found = GameCounter(assignment_of([1], 2)).count(rewards, terminals)
    assert (found.score.tolist(), found.games.tolist()) == ([0.0], [1])


def test_games_are_counted_as_in_a_loop_over_steps_also_after_a_restore():
    """Teams of 2, three rollouts; rewards are eighths, whose sums are exact in any order."""
    rng = np.random.default_rng(3)
    tags, each, T = [0, 2, 1, 0, 1, 2], 4, 16
    assignment = assignment_of(tags, each)
    scores, sums = GameCounter(assignment), np.zeros(len(tags))
    for _ in range(3):
        state = scores.state()
        scores = GameCounter(assignment)
        scores.restore(state)
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
        found = scores.count(rewards, terminals)
        assert (found.score == score).all() and (found.games == games).all()
        assert (found.ended == ended).all()


def test_a_state_of_another_assignment_is_refused():
    scores = GameCounter(assignment_of([1, 1], 2))
    with pytest.raises(UserError, match="of 1 environments with opponents, expected 2"):
        scores.restore(GameCounter(assignment_of([1, 0], 2)).state())
