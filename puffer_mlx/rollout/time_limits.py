"""Add values to the rewards of steps at which a time limit ended an episode.

In Gymnasium's SAME_STEP mode the step that ends an episode returns the next episode's first
observation, and the episode's last observation separately (``ReportsFinalObservations``). If a time
limit ended the episode, the value of its last observation is added to the reward of that step:

    reward = clip(reward, ±train.reward_clip) + gamma * V(last observation)

The policy that acted computes the value. Training doesn't clip these rewards again
(``without_reward_clip``). This module isn't used for environments that return an episode's last
observation as a row of the rollout (``VecEnv.final_observations``; see
docs/decisions/0011-last-observations.md).
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


def env_with_final_observations(config: Config, vec: VecEnv) -> ReportsFinalObservations | None:
    """Return the environments if values are added to rewards at time limits, else None.

    It applies if ``train.bootstrap_truncated`` is True and the environments report an episode's
    last observation separately from the rollout's rows.
    """
    if not config.train.bootstrap_truncated:
        return None
    if not isinstance(vec, ReportsFinalObservations) or not vec.reports_final_observations:
        return None
    return vec


def without_reward_clip(config: Config) -> Config:
    """Return the configuration without reward clipping, as ``add_final_values`` clips already."""
    return replace(config, train=replace(config.train, reward_clip=math.inf))


def add_final_values(
    buffer: RolloutBuffer,
    last: FinalObservations,
    policy: Policy,
    weights: Any,
    states: list[Any],
    config: Config,
) -> None:
    """Clip a rollout's rewards, and add the final value where a time limit ended an episode.

    Args:
        buffer: The rollout; its rewards are changed in place.
        last: Last observations of the k episodes that a time limit ended.
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
    """Return the policy's values of the last observations of k episodes, (k,) float32."""
    agents = mx.array(last.agents)
    episodes = np.arange(len(last.steps))
    last_observations = last.observations.astype(buffer.rows.observations.dtype, copy=False)
    if not policy.is_recurrent:
        state = policy.initial_state(len(episodes))
        _, _, value, _ = policy.act(weights, mx.array(last_observations), state, None)
        return np.array(value.astype(mx.float32))
    # The value depends on the recurrent state, so the rollout is replayed up to the last row. In
    # the replay an episode's last observation takes the place of the next one's first observation.
    state = tree_map(lambda *each: mx.concatenate([*each])[agents], *states)
    observations = buffer.rows.observations[:, last.agents]
    terminals = buffer.rows.terminals[:, last.agents]
    observations[last.steps, episodes] = last_observations
    terminals[last.steps, episodes] = 0
    values = []
    for row, ended in zip(observations, terminals, strict=True):
        not_done = policy.not_done(mx.array(ended))
        _, _, value, state = policy.act(weights, mx.array(row), state, None, None, not_done)
        values.append(value.astype(mx.float32))
    return np.array(mx.stack(values))[last.steps, episodes]
