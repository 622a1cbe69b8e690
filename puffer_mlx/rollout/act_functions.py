"""MLX functions that compute one step of a policy: observations to actions and next state."""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.ops.verification import verified
from puffer_mlx.policy.choosing_on_gpu import choose_actions, chooses_on_gpu
from puffer_mlx.policy.policy import Policy
from puffer_mlx.rollout.policy_assignment import PolicyAssignment


def compile_act(policy: Policy, assignment: PolicyAssignment | None = None) -> Callable[..., Any]:
    """Return a compiled MLX function that computes one step of a policy.

    It takes (weights, observations, state, noise, mask, terminals), in self-play also (agents,
    positions), as ``_act_by_policy`` describes. The caller must hold the lock ``devices.building``
    if other threads build MLX graphs.

    Args:
        policy: The acting policy, or the architecture that all policies share in self-play.
        assignment: Policy of each agent in self-play, or None for one policy.
    """
    plain = plain_act(policy, assignment)
    return verified(plain, mx.compile(plain), context=str(policy), draws=True)


def plain_act(policy: Policy, assignment: PolicyAssignment | None = None) -> Callable[..., Any]:
    """Return the uncompiled MLX function that chooses the actions of one step, for ``compile_act``.

    It is ``_act`` for one policy, and ``_act_by_policy`` in self-play.
    """
    return partial(_act if assignment is None else _act_by_policy, policy)


def _act(policy: Policy, weights, observations, state, noise, mask, terminals):
    """Choose the actions of n agents in one step.

    Args:
        policy: The acting policy.
        weights: Weights of the policy.
        observations: (n, D).
        state: Recurrent state of n agents.
        noise: (n, heads), random numbers for sampling; None to take the most probable actions.
        mask: (n, A), non-zero where an action is legal, or None.
        terminals: (n,), 1 where an episode ended before the step.

    Returns:
        One array (heads + 2, n) float32 of actions, log-probabilities and values, because the host
        reads them together; and the next recurrent state.
    """
    not_done = policy.not_done(terminals)
    if noise is not None and chooses_on_gpu(policy, len(observations)):
        outputs, values, state = policy.step(weights, observations, state, not_done)
        return choose_actions(policy, outputs, values, noise, mask), state
    actions, logprobs, values, state = policy.act(
        weights, observations, state, noise, mask, not_done
    )
    return mx.concatenate([actions.T, logprobs[None], values[None]]), state


def _act_by_policy(
    policy: Policy, weights, observations, state, noise, mask, terminals, agents, positions
):
    """Choose the actions of n agents that several policies play, in one step.

    Args:
        policy: The architecture that all policies share.
        weights: List of each policy's weights.
        observations: (n, D).
        state: Recurrent state of n agents.
        noise: (n, heads), random numbers for sampling; None to take the most probable actions.
        mask: (n, A), non-zero where an action is legal, or None.
        terminals: (n,), 1 where an episode ended before the step.
        agents: List of each policy's agents, int32; each of the n agents is in one item.
        positions: (n,) int32, position of each agent in the concatenation of ``agents``.

    Returns:
        The same as ``_act``, in the order of the agents.
    """
    results = []
    for policy_weights, rows in zip(weights, agents, strict=True):
        select = partial(tree_map, lambda array, rows=rows: array[rows])
        policy_observations = select(observations)
        policy_state = select(state)
        policy_noise = select(noise)
        policy_terminals = select(terminals)
        policy_mask = None if mask is None else select(mask)
        arrays = policy_observations, policy_state, policy_noise, policy_mask, policy_terminals
        results.append(_act(policy, policy_weights, *arrays))
    outputs, states = zip(*results, strict=True)
    state = tree_map(lambda *arrays: mx.concatenate([*arrays])[positions], *states)
    return mx.concatenate([*outputs], axis=1)[:, positions], state
