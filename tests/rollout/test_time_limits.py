"""Time limits of vector environments that reset within a step: rewards contain the last value."""

from contextlib import nullcontext
from typing import Any

import gymnasium
import mlx.core as mx
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import SyncVectorEnv
from stepping import gym_vec, started, step

import puffer_mlx
from puffer_mlx import vec
from puffer_mlx.errors import UserError
from puffer_mlx.vec.gym.installed import has_vectorised_versions
from puffer_mlx.vec.normalize import Normalized

pytestmark = pytest.mark.skipif(not has_vectorised_versions(), reason="needs Gymnasium 1.1")
T, N, GAMMA, CLIP, REWARD = 16, 4, 0.9, 2.0, 3.0
SETTINGS: dict[str, Any] = {
    "total_agents": N,
    "num_buffers": 2,
    "horizon": T,
    "minibatch_size": T * N,
    "total_timesteps": 3 * T * N,
    "gamma": GAMMA,
    "reward_clip": CLIP,
    "normalize_rewards": 0,
    "normalize_observations": 0,
}


class Limited(gymnasium.Env):
    """Gymnasium environment whose episodes end by their time limit, or by death.

    It observes the step and the episode.
    """

    action_space = Discrete(2)

    def __init__(self, limit: int = 5, dies: bool = False, nested: bool = False):
        self.limit, self.dies, self.nested, self.episode = limit, dies, nested, 0
        self.observation_space: Any = Box(0, 99, (2,), np.float32)
        if nested:
            self.observation_space = Dict(x=self.observation_space)

    def see(self):
        seen = np.array([self.t, self.episode], np.float32)
        return {"x": seen} if self.nested else seen

    def reset(self, *, seed=None, options=None):
        self.t = 0
        self.episode += 1
        return self.see(), {}

    def step(self, action):
        self.t += 1
        over = self.t >= self.limit
        return self.see(), REWARD, over and self.dies, over, {}


def same_step(num_envs, **keywords):
    """Create vector environments with time limits of 4, 5, 6 … steps.

    The first one dies at its limit.
    """
    return SyncVectorEnv(
        [lambda i=i: Limited(4 + i, i == 0, **keywords) for i in range(num_envs)],
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )


def value(policy, weights, rows) -> float:
    """Return a policy's value of the last of an agent's successive observations."""
    state = policy.initial_state(1)
    for row in rows:
        seen = mx.array(np.asarray(row, np.float32)[None])
        _, _, v, state = policy.act(weights, seen, state, None)
    return float(v[0])


@pytest.mark.parametrize(
    ("network", "overlap", "nested"), [("MLP", 0, False), ("GRU", 1, False), ("GRU", 0, True)]
)
def test_a_time_limit_adds_the_value_of_the_last_observation(network, overlap, nested):
    """The value is added after rewards are clipped. Other rewards are only clipped."""

    def make(num_envs):
        return same_step(num_envs, nested=nested)

    settings = SETTINGS | {"network": network, "overlap": overlap}
    with puffer_mlx.Trainer(settings, make) as trainer:
        policy, weights = trainer.policy, trainer.weights
        next(iter(trainer))
        buffer = trainer.collector.buffers[overlap]
        rewards, terminals = buffer.rows.rewards, buffer.rows.terminals
        expected = np.full((T + 1, N), CLIP)
        expected[0] = 0
        for agent in range(N):
            limit, episode = 4 + agent % 2, 1
            for row in range(limit, T + 1, limit):
                assert terminals[row, agent]
                if agent % 2:  # not the one that dies
                    rows = [(t, episode) for t in range(limit + 1)]
                    expected[row, agent] += GAMMA * value(policy, weights, rows)
                episode += 1
        np.testing.assert_allclose(rewards, expected, rtol=1e-5, atol=1e-5)
        assert abs(expected - CLIP)[1:].max() > 1e-3


def limited(factory=same_step, final_observations=True):
    return gym_vec(
        factory,
        name="x",
        total_agents=4,
        num_buffers=2,
        backend="vector",
        final_observations=final_observations,
    )


def test_take_last_returns_the_last_observations_since_the_previous_call():
    """The first call begins the recording. Each group counts its steps."""
    with limited() as inner, Normalized(inner, True, True, GAMMA) as env:
        assert inner.reports_final_observations and not env.final_observations
        rows = started(env)
        for _ in range(5):
            step(env, rows)
        assert len(env.take_final_observations().steps) == 0
        for _ in range(10):
            step(env, rows)
        last = env.take_final_observations()
        assert last.steps.tolist() == [5, 5, 10, 10] and last.agents.tolist() == [1, 3, 1, 3]
        expected = [[5, 2], [5, 2], [5, 3], [5, 3]]
        np.testing.assert_allclose(env.raw(last.observations), expected, rtol=1e-5)
        assert abs(last.observations).max() < 5  # they are normalized


@pytest.mark.parametrize("final_observations", [True, False])
def test_a_missing_last_observation_is_an_error_if_it_is_used(final_observations):
    class Silent(gymnasium.vector.VectorWrapper):
        def step(self, actions):
            *rest, infos = super().step(actions)
            return *rest, {k: x for k, x in infos.items() if "final_obs" not in k}

    said = r'truncated an episode .* infos\["final_obs"\]'
    with limited(lambda num_envs: Silent(same_step(num_envs)), final_observations) as env:
        rows = started(env)
        with pytest.raises(UserError, match=said) if final_observations else nullcontext():
            for _ in range(6):
                step(env, rows)


def test_bootstrap_truncated_is_used_and_can_be_switched_off():
    with puffer_mlx.Trainer(SETTINGS, same_step) as trainer:
        assert not any(
            "bootstrap" in key for key in vec.unused_env_keys(trainer.config, trainer.vec)
        )
    with puffer_mlx.Trainer(SETTINGS | {"bootstrap_truncated": 0}, same_step) as trainer:
        next(iter(trainer))
        assert abs(trainer.collector.buffer.rows.rewards).max() == REWARD  # training clips them
