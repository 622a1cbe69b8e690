"""From environment to minibatch, a row belongs to one agent and one time."""

from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import oracles
import pytest
from covering import pairs
from small_policies import compiled

from puffer_mlx.config import Policy, Torch, Train
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.acting_in_mlx import ActingInMLX, one_shard_per_group, shards_for_gpu
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.training.streams import acting_streams

T, N = 5, 12


class Run:
    """A rollout buffer, coded environments and a policy, to collect rollouts."""

    def __init__(
        self,
        groups=2,
        sizes=(3,),
        masked=False,
        dtype=np.float32,
        final_observations=False,
        network="MinGRU",
    ) -> None:
        self.vec = oracles.CodedVec(N, groups, sizes, masked, dtype, final_observations)
        self.policy = make_policy(
            self.vec.spec, Policy(hidden_size=8, num_layers=2), Torch(network=network)
        )
        self.weights = self.policy.init(mx.random.key(0))
        scale = mx.array([0.1, 0.05, 1e-3, 0.1])  # observations are large numbers
        self.weights["encoder"]["weight"] = self.weights["encoder"]["weight"] * scale
        self.buffer = RolloutBuffer(self.vec.spec, T, N, groups, final_observations)
        self.buffer.reset(self.vec)
        self.states = [self.policy.initial_state(N // groups) for _ in range(groups)]
        self.update = compiled(self.policy, Train(horizon=T))
        self.lane = PhaseTimer("rollout")
        self.rollouts = 0

    def rollout(self, parts=one_shard_per_group):
        self.buffer.begin(self.buffer)
        self.noise = self.policy.distribution.noise(mx.random.key(self.rollouts), (T, N))
        self.lane.start()
        acting = ActingInMLX(self.update.act, self.streams, self.lane, parts)
        given = self.weights, self.states, self.noise
        self.states = acting.collect(self.buffer, self.vec, *given)
        self.rollouts += 1

    def streams(self):
        return acting_streams(mx.Device(mx.cpu), 2, len(self.buffer.groups))

    def fields(self):
        names = "observations actions logprobs rewards terminals masks final_observations"
        return {name: getattr(self.buffer, name) for name in names.split()}


@pytest.mark.parametrize(
    ("final_observations", "groups", "masked", "dtype"),
    pairs([False, True], [1, 2, 4], [False, True], [np.float32, np.uint8]),
)
def test_a_row_contains_what_arrived_together(final_observations, groups, masked, dtype):
    run = Run(groups, (3, 2), masked, dtype, final_observations=final_observations)
    for rollout in range(3):
        run.rollout()
        buffer, first = run.buffer, rollout * T
        assert buffer.observations.dtype == (mx.uint8 if dtype == np.uint8 else mx.float32)
        found = (
            buffer.observations,
            buffer.rewards,
            buffer.terminals,
            buffer.masks,
            buffer.final_observations,
        )
        for t in range(T + 1):  # row T is row 0 of the next rollout
            arrived = run.vec.rows(np.arange(N), first + t)
            for array, expected in zip(found, arrived, strict=False):
                assert (array is None) == (expected is None)
                if array is not None:
                    expected = np.asarray(expected).astype(np.array(array).dtype)
                    np.testing.assert_array_equal(np.array(array)[t], expected)
        actions = np.array(buffer.actions)  # each in the row in which it was sent
        sent = [np.array(each[first : first + T]) for each in run.vec.sent]
        np.testing.assert_array_equal(actions, np.concatenate(sent, axis=1))
        if masked:
            taken = actions.astype(int) + np.array([0, 3])
            assert np.take_along_axis(np.array(buffer.masks)[:T], taken, axis=-1).all(), "illegal"


@pytest.mark.parametrize("network", ["MinGRU", "LSTM"])
def test_results_do_not_depend_on_groups_and_shards(network):
    """Stored rows and states are the same with 1, 2 and 4 groups, and with 4 groups in 2 shards."""

    def states(run):
        leaves = [[np.array(a) for _, a in oracles.named(state)] for state in run.states]
        return [np.concatenate(groups) for groups in zip(*leaves, strict=True)]

    ways = [
        (1, one_shard_per_group),
        (2, one_shard_per_group),
        (4, one_shard_per_group),
        (4, shards_for_gpu),
    ]
    runs = [Run(groups, (3, 2), True, network=network) for groups, _ in ways]
    for _ in range(2):
        for run, (_, parts) in zip(runs, ways, strict=True):
            run.rollout(parts)
        one, *others = runs
        for other in others:
            for name, array in {**one.fields(), "values": one.buffer.values}.items():
                rounding = 1e-6 if name in ("logprobs", "values") else 0
                if array is not None:
                    found = getattr(other.buffer, name)
                    np.testing.assert_allclose(found, array, rtol=0, atol=rounding, err_msg=name)
            for found, state in zip(states(other), states(one), strict=True):
                np.testing.assert_allclose(found, state, rtol=0, atol=1e-6)
    assert len(np.unique(np.array(runs[0].buffer.actions)[..., 0])) == 3
    assert [shards_for_gpu(groups) for groups in range(1, 10)] == [1, 2, 3, 2, 5, 2, 7, 2, 3]


@pytest.mark.parametrize("bootstrap", [False, True])
def test_final_observations_are_not_trained_on(bootstrap):
    run = Run(2, (3, 2), final_observations=True)
    run.update = compiled(run.policy, Train(horizon=T, bootstrap_truncated=bootstrap))
    for _ in range(2):
        run.rollout()
    fields, update = run.fields(), run.update
    values = mx.array(oracles.CodedVec.code(np.arange(N)[None], np.arange(T)[:, None]), mx.float32)
    ones, uniforms = mx.ones((T, N)), mx.array([0.01, 0.35, 0.7, 0.999])
    _, _, adv, totals = update.targets(fields, values, ones, None)
    rows, batch = update.draw(fields, values, adv, totals, uniforms, mx.array(1.0))
    final_observations = np.array(fields["final_observations"])[:T]
    kinds = set(final_observations.flatten())
    assert kinds == {0, 1, 2}
    taken = final_observations[:, np.array(rows)]
    weight = np.array(batch.weight).reshape(taken.shape)
    np.testing.assert_array_equal(weight == 0, taken > 0)
    assert (
        not np.array(adv)[final_observations > 0].any()
        and np.array(adv)[:-1][final_observations[:-1] == 0].all()
    )
    # Only with bootstrap a truncated step's value changes the row before it.
    _, _, changed, _ = update.targets(
        fields, values + mx.array(final_observations == 2), ones, None
    )
    before = (final_observations[1:] == 2) & (final_observations[:-1] == 0)
    moved = np.array(changed)[:-1] != np.array(adv)[:-1]
    assert before.any() and moved[before].all() == bootstrap and (bootstrap or not moved.any())


def test_phases_add_up_to_the_rollout(monkeypatch):
    """The environments and the policy advance the clock."""
    clock = SimpleNamespace(now=100.0)
    run = Run(2)
    run.lane = PhaseTimer("rollout", clock=lambda: clock.now)

    def slow(owner, name, seconds):
        function = getattr(owner, name)

        def call(*arguments):
            clock.now += seconds
            return function(*arguments)

        monkeypatch.setattr(owner, name, call)

    slow(run.vec, "wait", 1.0)
    slow(run.vec, "send", 0.5)
    slow(run.update, "act", 0.25)
    slow(run.buffer, "record", 0.125)
    began = clock.now
    run.rollout()
    phases = run.lane.flush()
    assert sum(phases.values()) == clock.now - began
    # 2 * T waits and 2 at the end, 2 * T sends; 2 * T times acting and storing
    expected = {"eval_env": 2 * (T + 1) + T, "eval_act": T / 2, "eval_store": T / 4}
    assert phases == expected | {"eval_copy_in": 0, "eval_copy_out": 0}
    assert not any(run.lane.flush().values())
