"""Add the values of last observations to rewards, for environments that reset within a step.

In Gymnasium's SAME_STEP mode the step that ends an episode returns the next episode's first
observation, and the last observation separately (``ReportsFinalObservations``). If a time limit
ended the episode, the value of the last observation is added to the reward of that step:

    reward = clip(reward, ±train.reward_clip) + gamma * V(last observation)

The policy that acted computes the value. Training doesn't clip these rewards again
(``without_reward_clip``). If last observations have rows (``VecEnv.final_observations``), this
module isn't used (docs/decisions/0011-last-observations.md).
"""

import math
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.config import Config
from puffer_mlx.policy.policy import Policy
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.vec.base import FinalObservations, ReportsFinalObservations, VecEnv


def env_with_last_observations(config: Config, vec: VecEnv) -> ReportsFinalObservations | None:
    """Return the environments if ``add_last_values`` applies to them, else None.

    It applies with ``train.bootstrap_truncated`` to environments that report last observations
    outside the rows.
    """
    bootstrapped = config.train.bootstrap_truncated
    return (
        vec
        if bootstrapped
        and isinstance(vec, ReportsFinalObservations)
        and vec.reports_final_observations
        else None
    )


def without_reward_clip(config: Config) -> Config:
    """Return a configuration without reward clipping. ``add_last_values`` clips rewards."""
    return replace(config, train=replace(config.train, reward_clip=math.inf))


def add_last_values(
    buffer: RolloutBuffer,
    last: FinalObservations,
    policy: Policy,
    weights: Any,
    states: list[Any],
    config: Config,
) -> None:
    """Clip a rollout's rewards, and add the values of the episodes that a time limit ended.

    Args:
        buffer: The rollout; its rewards are changed in place.
        last: Last observations of the k episodes.
        policy: The policy that acted.
        weights: Weights of the policy.
        states: Recurrent states of each group before the rollout.
        config: Configuration with ``train.reward_clip`` and ``train.gamma``.
    """
    clip = config.train.reward_clip
    rows = buffer.rows
    np.clip(rows.rewards, -clip, clip, out=rows.rewards)
    if len(last.steps):
        values = _values(buffer, last, policy, weights, states)
        rows.rewards[last.steps, last.agents] += config.train.gamma * values


def _values(
    buffer: RolloutBuffer, last: FinalObservations, policy: Policy, weights: Any, states: list[Any]
) -> np.ndarray:
    """Return the policy's values of k last observations, (k,) float32."""
    agents = mx.array(last.agents)
    columns = np.arange(len(last.steps))
    reported = last.observations.astype(buffer.rows.observations.dtype, copy=False)
    if not policy.is_recurrent:
        state = policy.initial_state(len(columns))
        return np.array(policy.act(weights, mx.array(reported), state, None)[2].astype(mx.float32))
    # Replay the rows before each last observation, to get the state before it.
    state = tree_map(lambda *each: mx.concatenate([*each])[agents], *states)
    observations = buffer.rows.observations[:, last.agents]
    terminals = buffer.rows.terminals[:, last.agents]
    observations[last.steps, columns] = reported
    terminals[last.steps, columns] = 0
    values = []
    for row, ended in zip(observations, terminals, strict=True):
        not_done = policy.not_done(mx.array(ended))
        _, _, value, state = policy.act(weights, mx.array(row), state, None, None, not_done)
        values.append(value.astype(mx.float32))
    return np.array(mx.stack(values))[last.steps, columns]
