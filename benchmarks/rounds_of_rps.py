"""Compute the behaviour of a policy in rock_paper_scissors after every past, and its value.

A past of d rounds is a number below 9^d: a digit to base 9 for each round, the first round's the
most significant, 3 x own choice + the other's. A behaviour is a list of R arrays, for each round
(9^d, 3): the probabilities of rock, paper, scissors after each past of d rounds. Everything here is
exact but for rounding; payoffs are sums over an episode of R rounds.
"""
# ruff: noqa: I001

from collections.abc import Sequence
from typing import Any

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx
import numpy as np

from puffer_mlx.policy.policy import Policy

CHOICES, MOST_ROUNDS = 3, 4  # as in envs/rock_paper_scissors
BOTH = CHOICES * CHOICES  # outcomes of a round
WORTH = np.array([[0, -0.5, 1], [0.5, 0, -0.5], [-1, 0.5, 0]])  # [own choice, the other's]
Behaviour = list[np.ndarray]


def digits(d: int) -> np.ndarray:
    """The outcomes of all pasts of d rounds, (9^d, d), the first round's first."""
    return np.arange(BOTH**d)[:, None] // BOTH ** np.arange(d)[::-1] % BOTH


def turned(d: int) -> np.ndarray:
    """Return each past of d rounds as the other agent sees it, (9^d,)."""
    own, other = np.divmod(digits(d), CHOICES)
    return (CHOICES * other + own) @ BOTH ** np.arange(d)[::-1]


def observations(d: int) -> np.ndarray:
    """Return an agent's observations after each past of d rounds, (9^d, 22) uint8."""
    now = np.eye(MOST_ROUNDS)[[d] * BOTH**d]
    past = np.zeros((BOTH**d, MOST_ROUNDS - 1, 2, CHOICES))
    own, other = np.divmod(digits(d), CHOICES)
    past[:, :d, 0], past[:, :d, 1] = np.eye(CHOICES)[own], np.eye(CHOICES)[other]
    return np.concatenate([now, past.reshape(BOTH**d, -1)], axis=1).astype(np.uint8)


def behaviour(policy: Policy, weights: Any, rounds: int) -> Behaviour:
    """Return the behaviour of a policy without memory."""
    assert not policy.is_recurrent, "what it does would depend on more than an observation"
    seen = mx.array(np.concatenate([observations(d) for d in range(rounds)]))
    logits, _, _ = policy.step(weights, seen, policy.initial_state(len(seen)))
    chances = np.asarray(mx.softmax(logits.astype(mx.float32), axis=0), np.float64).T
    return np.split(chances, np.cumsum([BOTH**d for d in range(rounds - 1)]))


def answered(members: Sequence[Behaviour], d: int) -> np.ndarray:
    """Return the actions of M opponents after the pasts that an agent sees, (M, 9^d, 3)."""
    return np.stack([member[d] for member in members])[:, turned(d)]


def exploitability(members: Sequence[Behaviour]) -> float:
    """Return the best answer's points in an episode against one of M behaviours, drawn at random.

    The answer knows them all and not which was drawn: it may find out. The game's value is 0, so a
    behaviour that nothing beats has 0.
    """
    rounds = len(members[0])
    chances = np.full((len(members), 1), 1 / len(members))  # that it is this one and did its part
    reached = []  # of each round: (9^d, 3), the chance of the past and what the other does then
    for d in range(rounds):
        does = chances[:, :, None] * answered(members, d)  # (M, 9^d, other's)
        reached.append(does.sum(axis=0))
        chances = np.repeat(does[:, :, None], CHOICES, axis=2).reshape(len(members), -1)
    later = np.zeros(BOTH**rounds)
    for does in reversed(reached):  # the best of three choices, from the last round back
        later = (does @ WORTH.T + later.reshape(-1, CHOICES, CHOICES).sum(axis=2)).max(axis=1)
    return float(later[0])


def payoffs(one: Behaviour, members: Sequence[Behaviour]) -> np.ndarray:
    """Return the points of a behaviour in an episode against each of M others, (M,)."""
    chances, total = np.ones((len(members), 1)), np.zeros(len(members))
    for d, own in enumerate(one):
        both = own[None, :, :, None] * answered(members, d)[:, :, None]  # (M, 9^d, own, other's)
        both = chances[:, :, None, None] * both
        total += (both * WORTH).sum(axis=(1, 2, 3))
        chances = both.reshape(len(members), -1)
    return total
