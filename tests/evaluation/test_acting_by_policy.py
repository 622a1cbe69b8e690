"""Several policies in one rollout: each row equals what its policy alone would do there."""

import ctypes
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from native_envs import make
from small_policies import weights_of

from puffer_mlx.config import Policy, Torch
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.act_functions import compile_act
from puffer_mlx.rollout.acting_in_c import ActingInC, make_actor
from puffer_mlx.rollout.acting_in_mlx import ActingInMLX, one_shard_per_group, shards_for_gpu
from puffer_mlx.rollout.buffer import RolloutBuffer, Views
from puffer_mlx.rollout.policy_assignment import (
    PolicyAssignment,
    assign_as_declared,
    assign_in_blocks,
)
from puffer_mlx.training.streams import acting_streams
from puffer_mlx.trees import leaves

ActFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int)
CPU = mx.Device(mx.cpu)
T = 12
ENVIRONMENTS = {  # bytes and masks; agents who change places; two heads, floats, teams
    "connect4_two": lambda vec: assign_in_blocks(vec, 2, 0.2),
    "peloton": lambda vec: assign_as_declared(vec, 1, 0.3),
    "target": lambda vec: assign_in_blocks(vec, 2, 0.2),
}
pytestmark = pytest.mark.usefixtures("extension")


class Game:
    """Collects two self-play rollouts of an environment by one way of acting."""

    def __init__(self, name: str, network="MinGRU", groups=2, agents=192) -> None:
        self.vec = make(name, total_agents=agents, num_buffers=groups, num_threads=2)
        self.assignment: PolicyAssignment = ENVIRONMENTS[name](self.vec)
        settings = Policy(hidden_size=16, num_layers=2, reset_on_terminal=True)
        self.policy = make_policy(self.vec.spec, settings, Torch(network=network))
        self.weights = [
            weights_of(self.policy, seed) for seed in range(1 + self.assignment.opponents)
        ]
        for own in self.weights if name == "peloton" else []:  # whose observations are up to 20
            own["encoder"]["weight"] = own["encoder"]["weight"] / 20
        self.buffer = RolloutBuffer(self.vec.spec, T, agents, groups)
        self.states = [self.policy.initial_state(agents // groups) for _ in range(groups)]
        self.groups = groups

    def rollouts(self, acting: Any, weights: Any = None) -> list[np.ndarray]:
        """Collect two rollouts, and return all arrays that the second one wrote."""
        self.buffer.reset(self.vec)
        agents = self.buffer.rewards.shape[1]
        for key in range(2):
            self.buffer.begin(self.buffer)
            self.noise = self.policy.distribution.noise(mx.random.key(key), (T, agents))
            self.before = whole(self.states)
            mx.eval(weights or self.weights, self.noise, self.states)
            given = weights or self.weights, self.states, self.noise
            self.states = acting.collect(self.buffer, self.vec, *given)
        return self.written()

    def written(self) -> list[np.ndarray]:
        fields = [np.array(array) for array in self.buffer.fields.values() if array is not None]
        return [*fields, *map(np.asarray, leaves(whole(self.states)))]

    def in_c(self) -> ActingInC:
        actors = make_actor(self.policy, self.assignment)
        assert actors is not None
        return ActingInC(actors, PhaseTimer("rollout"))

    def in_mlx(self, parts=one_shard_per_group) -> ActingInMLX:
        streams = lambda: acting_streams(CPU, 2, self.groups)  # noqa: E731
        return ActingInMLX(
            compile_act(self.policy, self.assignment),
            streams,
            PhaseTimer("rollout"),
            parts,
            self.assignment,
        )

    def act_alone(self, policy: int) -> list[np.ndarray]:
        """Act on the last rollout's observations with one policy for all agents.

        Returns:
            Actions, log-probabilities, values and states of the agents that it plays in self-play.
        """
        actor, views = make_actor(self.policy), self.buffer.views
        assert actor is not None
        actor.prepare(self.weights[policy])
        own = Views(*views[:3], *(np.zeros_like(array) for array in views[3:]))
        states = tree_map(np.copy, self.before)
        function, context = actor.bind(own, np.asarray(self.noise), states)
        for t in range(T):
            ActFunction(function)(context, t, 0, views.values.shape[1])
        return self.of(policy, own, states)

    def of(self, policy: int, views: Views, states: Any) -> list[np.ndarray]:
        rows = self.assignment.rows(policy)
        steps = [array[:T, rows] for array in (views.actions, views.logprobs, views.values)]
        return steps + [np.asarray(array)[rows] for array in leaves(states)]

    def found(self, policy: int) -> list[np.ndarray]:
        return self.of(policy, self.buffer.views, whole(self.states))


def whole(states: list[Any]) -> Any:
    """Concatenate the recurrent states of all groups as NumPy arrays."""
    return tree_map(lambda *parts: np.concatenate([np.asarray(a) for a in parts]), *states)


@pytest.mark.parametrize(
    ("name", "network"), [("connect4_two", "MinGRU"), ("peloton", "LSTM"), ("target", "MLP")]
)
def test_in_c_each_row_is_its_policys_to_the_bit_also_with_new_weights(name: str, network: str):
    game = Game(name, network)
    with game.vec:
        acting = game.in_c()
        game.rollouts(acting)
        check_rows(game)
        logprobs, other_logprobs = game.act_alone(0)[1], game.act_alone(1)[1]
        assert (logprobs != other_logprobs[:, :1]).any()  # the policies differ
        game.weights[1] = tree_map(lambda w: 0.9 * w, game.weights[1])
        game.rollouts(acting)
        check_rows(game)


def check_rows(game: Game) -> None:
    for policy in range(1 + game.assignment.opponents):
        for mine, theirs in zip(game.found(policy), game.act_alone(policy), strict=True):
            np.testing.assert_array_equal(mine, theirs)
            assert np.abs(mine).max() > 0


@pytest.mark.parametrize(
    ("name", "network", "parts"),
    [("connect4_two", "MinGRU", one_shard_per_group), ("target", "MLP", shards_for_gpu)],
)
def test_through_mlx_each_row_is_its_policys(name: str, network: str, parts):
    game = Game(name, network, groups=4)
    with game.vec:
        game.rollouts(game.in_mlx(parts))
        for policy in range(1 + game.assignment.opponents):
            found, alone = game.found(policy), game.act_alone(policy)
            assert (found[0] == alone[0]).mean() > 0.999  # a choice at a boundary of two
            if (found[0] == alone[0]).all():
                scale = 1e-5 * max(1, np.abs(alone[2]).max())
                for mine, theirs in zip(found, alone, strict=True):
                    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=scale)
