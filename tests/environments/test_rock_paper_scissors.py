"""rock_paper_scissors against its rules: payoffs, memory, episodes, and the scripted player."""

import numpy as np
import pytest
from native_envs import Stepper, assert_match_log, bot_of, make

from puffer_mlx.vec.rows import random_actions

ROCK, PAPER, SCISSORS = 0, 1, 2
WORTH = np.array([[0, -0.5, 1], [0.5, 0, -0.5], [-1, 0.5, 0]])  # [own choice, the other's]


def test_episodes_follow_the_rules():
    E, rounds, rng = 16, 4, np.random.default_rng(0)
    ends = []  # (rewards of agent 0, how often each choice was made)
    with make("rock_paper_scissors", total_agents=2 * E, env={"rounds": rounds}) as vec:
        stepper = Stepper(vec)
        for _ in range(20):
            seen = np.zeros((E, 2, 3, 2, 3), np.uint8)  # of the earlier rounds, by each agent
            won, made = np.zeros(E), np.zeros((E, 3))
            for now in range(rounds):
                shown = stepper.rows.observations.reshape(E, 2, 22)
                np.testing.assert_array_equal(shown[..., :4], np.eye(4)[[[now] * 2] * E])
                np.testing.assert_array_equal(shown[..., 4:].reshape(seen.shape), seen)
                actions = random_actions(vec, 2 * E, rng)
                rows = stepper.step(actions)
                own = actions.reshape(E, 2).astype(int)
                np.testing.assert_array_equal(rows.rewards.reshape(E, 2), WORTH[own, own[:, ::-1]])
                assert (rows.terminals == (now == rounds - 1)).all()
                won += WORTH[own[:, 0], own[:, 1]]
                made += np.eye(3)[own].sum(axis=1)
                if now < rounds - 1:
                    seen[:, :, now, 0] = np.eye(3)[own]
                    seen[:, :, now, 1] = np.eye(3)[own[:, ::-1]]
            ends += zip(won, made / (2 * rounds), strict=True)
        log = vec.log()
    results, parts = np.array([end[0] for end in ends]), np.mean([end[1] for end in ends], axis=0)
    assert len(ends) == 20 * E and (results == 0).any()
    assert_match_log(log, results, np.full(len(ends), rounds))
    assert [log[name] for name in ("rock", "paper", "scissors")] == pytest.approx(list(parts))


def test_unknown_choice_loses():
    nothing = np.array([-1.0, 3.0, np.nan, np.inf, 1e30], np.float32)
    actions = np.stack([nothing, np.full(5, SCISSORS), nothing, nothing], 1).astype(np.float32)
    with make("rock_paper_scissors", total_agents=20) as vec:
        rows = Stepper(vec).step(actions.reshape(-1, 1))
        np.testing.assert_array_equal(rows.rewards.reshape(5, 4), [[-1, 1, 0, 0]] * 5)
        past = rows.observations[:, 4:10].reshape(5, 4, 6)
        np.testing.assert_array_equal(past[:, 0], [[0, 0, 0, 0, 0, 1]] * 5)
        np.testing.assert_array_equal(past[:, 1], [[0, 0, 1, 0, 0, 0]] * 5)
        assert not past[:, 2:].any()


def chosen(skill: float, n: int = 4000) -> list[np.ndarray]:
    """Return the scripted rock-paper-scissors player's choices in four rounds.

    The other one plays rock, scissors, scissors, paper.
    """
    bot = bot_of("rock_paper_scissors")
    rng, found = np.random.default_rng(1), []
    with make("rock_paper_scissors", total_agents=2 * n) as vec:
        stepper = Stepper(vec)
        for other in ROCK, SCISSORS, SCISSORS, PAPER:
            own = bot(stepper.rows.observations[0::2], None, skill, rng)
            found.append(own[:, 0])
            actions = np.full((n, 2), other, np.float32)
            actions[:, :1] = own
            stepper.step(actions.reshape(-1, 1))
    return found


def test_scripted_player_answers_the_most_frequent_choice():
    """The first choice is random; without skill every choice is."""
    first, *later = chosen(1.0)
    for drawn in first, *chosen(0.0):
        np.testing.assert_allclose(np.bincount(drawn) / len(drawn), [0.25, 0.5, 0.25], atol=0.04)
    for answers, answer in zip(later, (PAPER, PAPER, ROCK), strict=True):
        assert (answers == answer).all()
