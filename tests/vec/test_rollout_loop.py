"""Rollouts whose loop is in Python and whose policy is in C, against those all in C."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from native_envs import make

from puffer_mlx.config import Policy
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.acting_in_c import ActingInC, make_actor
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.vec import rollout_loop

T = 9


class Stepped:
    """Other environments, which collect step by step."""

    def __init__(self, inner, threads=1) -> None:
        self.inner, self.threads = inner, threads
        self.waits = 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def wait(self, group):
        self.waits += 1
        self.inner.wait(group)

    def collect(self, steps, act, actions, out, spans=0):
        itself: Any = self
        return rollout_loop.collect(itself, steps, act, actions, out, spans, self.threads)


def rollouts(vec: Any, agents: int, groups: int) -> list[np.ndarray]:
    """Return all arrays that two rollouts write."""
    policy = make_policy(vec.spec, Policy(hidden_size=16, num_layers=1))
    weights = policy.init(mx.random.key(0))
    actor, buffer = make_actor(policy), RolloutBuffer(vec.spec, T, agents, groups, vec.finals)
    assert actor is not None and callable(vec.collect)
    buffer.reset(vec)
    states = [policy.initial_state(agents // groups) for _ in range(groups)]
    seen = []
    for key in range(2):
        buffer.begin(buffer)
        noise = policy.distribution.noise(mx.random.key(key), (T, agents))
        mx.eval(weights, noise, states)
        acting = ActingInC(actor, PhaseTimer("rollout"))
        states = acting.collect(buffer, vec, weights, states, noise)
        seen += [np.array(array) for array in buffer.fields.values() if array is not None]
        seen += [np.array(state) for group in states for state in group]
    return seen


@pytest.mark.parametrize(
    ("name", "groups", "threads"),
    [("connect4", 2, 3), ("target", 2, 1), ("cartpole_continuous", 1, 3)],
)
def test_rollout_in_python_equals_rollout_in_c(extension, name, groups, threads):
    agents = 320  # several parts of 64, the last one smaller with 2 groups
    with make(name, total_agents=agents, num_buffers=groups) as inner:
        expected = rollouts(inner, agents, groups)
    with make(name, total_agents=agents, num_buffers=groups) as inner:
        vec = Stepped(inner, threads)
        found = rollouts(vec, agents, groups)
        assert vec.waits == 2 * T * groups
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_error_of_an_environment_ends_the_rollout(extension):
    with make("squared", total_agents=320) as inner:
        vec = Stepped(inner, threads=2)

        def broken(group):
            raise ValueError("broken")

        vec.wait = broken
        with pytest.raises(ValueError, match="broken"):
            rollouts(vec, 320, 1)
