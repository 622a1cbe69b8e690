"""Compute the behaviour of a policy in rock_paper_scissors after every history, and its value.

A history of d rounds is a number below 9^d with a digit to base 9 for each round, the first round's
being the most significant: 3 x the agent's choice + the opponent's choice. A behaviour is a list of
R arrays, one per round, (9^d, 3): the probabilities of rock, paper and scissors after each history
of d rounds. All results are exact up to rounding. Payoffs are sums over an episode of R rounds.
"""
# ruff: noqa: I001

from collections.abc import Sequence
from typing import Any

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx
import numpy as np

from puffer_mlx.policy.policy import Policy

CHOICES, MAX_ROUNDS = 3, 4  # as in envs/rock_paper_scissors
OUTCOMES = CHOICES * CHOICES  # of a round
PAYOFFS = np.array([[0, -0.5, 1], [0.5, 0, -0.5], [-1, 0.5, 0]])  # [agent's, opponent's choice]
Behaviour = list[np.ndarray]


def history_outcomes(d: int) -> np.ndarray:
    """Return the outcomes of all games of d rounds of rock-paper-scissors, (9^d, d).

    An outcome, 0 to 8, is 3 times the agent's choice plus the opponent's choice. The first round
    comes first.
    """
    return np.arange(OUTCOMES**d)[:, None] // OUTCOMES ** np.arange(d)[::-1] % OUTCOMES


def opponent_histories(d: int) -> np.ndarray:
    """Return each history of d rounds as the opponent sees it, with the choices swapped, (9^d,).

    Histories are numbered by the outcomes of their rounds.
    """
    agent, opponent = np.divmod(history_outcomes(d), CHOICES)
    return (CHOICES * opponent + agent) @ OUTCOMES ** np.arange(d)[::-1]


def observations(d: int) -> np.ndarray:
    """Return an agent's observations after each possible history of d rounds, (9^d, 22) uint8."""
    now = np.eye(MAX_ROUNDS)[[d] * OUTCOMES**d]
    past = np.zeros((OUTCOMES**d, MAX_ROUNDS - 1, 2, CHOICES))
    agent, opponent = np.divmod(history_outcomes(d), CHOICES)
    past[:, :d, 0], past[:, :d, 1] = np.eye(CHOICES)[agent], np.eye(CHOICES)[opponent]
    return np.concatenate([now, past.reshape(OUTCOMES**d, -1)], axis=1).astype(np.uint8)


def behaviour(policy: Policy, weights: Any, rounds: int) -> Behaviour:
    """Return a policy's probabilities of rock, paper and scissors after each possible history.

    The policy must not have a recurrent state.
    """
    assert not policy.is_recurrent, "actions must depend only on the observation"
    all_observations = mx.array(np.concatenate([observations(d) for d in range(rounds)]))
    logits, _, _ = policy.step(
        weights, all_observations, policy.initial_state(len(all_observations))
    )
    chances = np.asarray(mx.softmax(logits.astype(mx.float32), axis=0), np.float64).T
    return np.split(chances, np.cumsum([OUTCOMES**d for d in range(rounds - 1)]))


def opponent_choices(members: Sequence[Behaviour], d: int) -> np.ndarray:
    """Return M opponents' choice probabilities after each history of an agent, (M, 9^d, 3)."""
    return np.stack([member[d] for member in members])[:, opponent_histories(d)]


def exploitability(members: Sequence[Behaviour]) -> float:
    """Return how many points per episode the best response wins against a set of M behaviours.

    One of them is drawn at random for each episode.

    The best response knows all behaviours, but not which one it plays. A behaviour that can't be
    beaten has 0, the value of the game.
    """
    rounds = len(members[0])
    chances = np.full((len(members), 1), 1 / len(members))  # of opponent and history
    reached = []  # per round, (9^d, 3): probability of history and opponent's next choice
    for d in range(rounds):
        does = chances[:, :, None] * opponent_choices(members, d)  # (M, 9^d, opponent's)
        reached.append(does.sum(axis=0))
        chances = np.repeat(does[:, :, None], CHOICES, axis=2).reshape(len(members), -1)
    later = np.zeros(OUTCOMES**rounds)
    for does in reversed(reached):  # best of three choices, backwards from the last round
        later = (does @ PAYOFFS.T + later.reshape(-1, CHOICES, CHOICES).sum(axis=2)).max(axis=1)
    return float(later[0])


def payoffs(behaviour_of_agent: Behaviour, members: Sequence[Behaviour]) -> np.ndarray:
    """Return the mean points per episode that a behaviour wins against each of M others, (M,)."""
    chances, total = np.ones((len(members), 1)), np.zeros(len(members))
    for d, agent in enumerate(behaviour_of_agent):
        both = (
            agent[None, :, :, None] * opponent_choices(members, d)[:, :, None]
        )  # (M, 9^d, agent's, opponent's)
        both = chances[:, :, None, None] * both
        total += (both * PAYOFFS).sum(axis=(1, 2, 3))
        chances = both.reshape(len(members), -1)
    return total
