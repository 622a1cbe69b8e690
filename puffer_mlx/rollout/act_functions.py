"""The MLX functions that choose actions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.ops.verification import verified
from puffer_mlx.policy.choosing_on_gpu import choose, chooses_on_gpu
from puffer_mlx.policy.policy import Policy
from puffer_mlx.rollout.policy_assignment import PolicyAssignment


def compile_act(policy: Policy, assignment: PolicyAssignment | None = None) -> Callable[..., Any]:
    """Return the policy's compiled step for the device that acts, without its weights.

    Where another thread builds graphs at the same time, hold ``devices.building`` during each call.

    Args:
        policy: the acting policy.
        assignment: assignment of policies to agents in self-play. The function is then
            ``_act_by_policy`` instead of ``_act``.
    """
    plain = plain_act(policy, assignment)
    return verified(plain, mx.compile(plain), context=str(policy), draws=True)


def plain_act(policy: Policy, assignment: PolicyAssignment | None = None) -> Callable[..., Any]:
    """Return the policy's step, not compiled: see ``compile_act``."""
    return partial(_act if assignment is None else _act_by_policy, policy)


def _act(policy: Policy, weights, observations, state, noise, mask, terminals):
    """Choose the actions of one step.

    Args:
        policy: the acting policy.
        weights: weights of the policy.
        observations: (n, D).
        state: recurrent state of n agents.
        noise: (n, heads), what actions are sampled with; None takes the most probable ones.
        mask: (n, A), non-zero where an action is legal, or None.
        terminals: (n,).

    Returns:
        Actions, log-probabilities and values as one array (heads + 2, n) float32, because the host
        reads them together; and the new recurrent state.
    """
    not_done = policy.not_done(terminals)
    if noise is not None and chooses_on_gpu(policy, len(observations)):
        outputs, values, state = policy.step(weights, observations, state, not_done)
        return choose(policy, outputs, values, noise, mask), state
    actions, logprobs, values, state = policy.act(
        weights, observations, state, noise, mask, not_done
    )
    return mx.concatenate([actions.T, logprobs[None], values[None]]), state


def _act_by_policy(
    policy: Policy, weights, observations, state, noise, mask, terminals, rows, back
):
    """Choose the actions of agents that several policies act for.

    Args:
        policy: the architecture that all policies share.
        weights: a list of each policy's weights.
        observations: (n, D), all agents'; ``state`` to ``terminals`` are all agents', too.
        state: recurrent state.
        noise: (n, heads).
        mask: (n, A) or None.
        terminals: (n,).
        rows: a list of each policy's agents, int32; together all n.
        back: (n,) int32, the position of each agent in the concatenation of ``rows``.

    Returns:
        The same as ``_act``, for all agents in their order.
    """
    parts = []
    for each, chosen in zip(weights, rows, strict=True):
        arrays = [observations, state, noise, terminals]
        seen, before, drawn, ended = tree_map(lambda a, chosen=chosen: a[chosen], arrays)
        legal = None if mask is None else mask[chosen]
        parts.append(_act(policy, each, seen, before, drawn, legal, ended))
    outputs, states = zip(*parts, strict=True)
    state = tree_map(lambda *parts: mx.concatenate([*parts])[back], *states)
    return mx.concatenate([*outputs], axis=1)[:, back], state
