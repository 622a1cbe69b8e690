"""Acting in one kernel, which runs as C++, writes the rollouts of acting through MLX."""

from typing import Any

import mlx.core as mx
import numpy as np
import oracles
import pytest
from emulated_run import emulated_gpu
from oracles import named

from puffer_mlx.config import Policy, Torch
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout import acting_in_kernel
from puffer_mlx.rollout.acting import choose_acting
from puffer_mlx.rollout.acting_in_kernel import ActingInKernel
from puffer_mlx.rollout.acting_in_mlx import ActingInMLX
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.rollout.policy_assignment import PolicyAssignment
from puffer_mlx.system.backend import building_for

T, N = 4, 36
CPU = mx.Device(mx.cpu)


class Run:
    """Collects rollouts of a policy in coded environments, to compare ways of acting.

    acts: (N,), the index of the policy that acts for each agent, of three; None for one policy.
    """

    def __init__(
        self, groups=1, sizes=(3, 2), dtype=np.float32, agents=N, acts: Any = None, **parts
    ) -> None:
        self.vec: Any = oracles.CodedVec(agents, groups, sizes, sizes[0] > 1, dtype)
        settings = Policy(hidden_size=8, num_layers=2, reset_on_terminal=True)
        self.policy = make_policy(self.vec.spec, settings, Torch(**parts))
        self.assignment = (
            None if acts is None else PolicyAssignment(np.array(acts, np.int32), *[np.zeros(0)] * 2)
        )
        several: Any = [self.drawn(seed) for seed in range(3)]
        self.weights = several if self.assignment else several[0]
        self.buffer = RolloutBuffer(self.vec.spec, T, agents, groups)
        self.buffer.reset(self.vec)
        self.states = [self.policy.initial_state(agents // groups) for _ in range(groups)]
        self.rollouts, self.agents = 0, agents

    def drawn(self, seed: int) -> Any:
        weights = self.policy.init(mx.random.key(seed))
        scale = mx.array([0.1, 0.05, 1e-3, 0.1])  # observations are large numbers
        weights["encoder"]["weight"] = weights["encoder"]["weight"] * scale
        return weights

    def way(self, precision="fp32", timer: PhaseTimer | None = None) -> Any:
        timer = timer or PhaseTimer("", enabled=False)
        streams = lambda: [mx.default_stream(mx.cpu)]  # noqa: E731
        given = self.policy, self.vec, streams, timer, self.assignment
        return choose_acting(CPU, precision, *given)

    def rollout(self, timer: PhaseTimer | None = None) -> None:
        self.buffer.begin(self.buffer)
        noise = self.policy.distribution.noise(mx.random.key(self.rollouts), (T, self.agents))
        way = self.way(timer=timer)
        self.states = way.collect(self.buffer, self.vec, self.weights, self.states, noise)
        self.rollouts += 1


def assert_same(ours: Run, plain: Run) -> None:
    for (name, found), other in zip(
        ours.buffer.fields.items(), plain.buffer.fields.values(), strict=True
    ):
        if found is not None and other is not None:
            rows = min(len(found), len(other))
            rounding = 2e-6 if name in ("actions", "logprobs", "values") else 0
            pair = np.array(found)[:rows], np.array(other)[:rows]
            np.testing.assert_allclose(*pair, rtol=0, atol=rounding, err_msg=name)
    for one, other in zip(ours.vec.sent, plain.vec.sent, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)
    for (_, one), (_, other) in zip(named(ours.states), named(plain.states), strict=True):
        np.testing.assert_allclose(np.array(one), np.array(other), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("network", "groups"), [("MinGRU", 4), ("LSTM", 1), ("GRU", 2), ("MLP", 2)]
)
def test_rollouts_equal_those_of_acting_through_mlx(network, groups):
    ours, plain, timer = Run(groups, network=network), Run(groups, network=network), PhaseTimer("")
    for _ in range(2):
        with emulated_gpu() as gpu:
            ours.rollout(timer)
        assert set(timer.flush()) == {"eval_copy_in", "eval_act", "eval_env"}
        assert gpu.names == {f"{network.lower()}_act", "pack"}
        plain.rollout()
        assert_same(ours, plain)


@pytest.mark.parametrize(
    ("own_memory", "dtype", "sizes"),
    [(False, np.float32, (1, 1)), (True, np.uint8, (3, 2)), (True, np.float32, (1, 1))],
)
def test_training_reads_the_observations_that_a_gpu_with_separate_memory_copied(
    monkeypatch, own_memory, dtype, sizes
):
    monkeypatch.setattr(acting_in_kernel, "unified", lambda: not own_memory)
    ours, plain = Run(2, sizes, dtype), Run(2, sizes, dtype)
    for _ in range(2):
        with emulated_gpu():
            ours.rollout()
        plain.rollout()
        assert_same(ours, plain)
        seen = ours.buffer.fields["observations"]
        assert (seen is not ours.buffer.observations) == own_memory
        assert seen is not None and seen.dtype == ours.buffer.observations.dtype
    ours.rollout()  # through MLX
    assert ours.buffer.fields["observations"] is ours.buffer.observations


def test_the_kernel_acts_in_fp32_for_enough_agents():
    run, several = Run(), Run(acts=[0, 1] * 18)
    few = Run(agents=6), Run(agents=6, acts=[0, 1] * 3)  # too few for Metal to write
    assert isinstance(run.way(), ActingInMLX)
    with building_for("metal", lambda name, **_: pytest.fail(name)):
        assert isinstance(run.way(), ActingInKernel) and isinstance(several.way(), ActingInKernel)
        for other in run.way("bf16"), several.way("bf16"), *(each.way() for each in few):
            assert isinstance(other, ActingInMLX)


def test_actions_that_mlx_writes_elsewhere_are_an_error(monkeypatch):
    run = Run()
    with emulated_gpu():
        way = run.way()
        act = way.act
        way.act = lambda *given: act(*given[:7], given[7] + 0, *given[8:])  # a copy
        monkeypatch.setattr(run, "way", lambda timer: way)
        monkeypatch.setattr(acting_in_kernel, "kernel_substitute", lambda: None)  # this one writes
        with pytest.raises(RuntimeError, match="chosen actions are lost"):
            run.rollout()


# ---- several policies ----------------------------------------------------------------------------

TURNS = np.resize([0, 1, 0, 0, 2], N)  # neighbours have different policies
HALVES = np.repeat([0, 2, 0, 1], N // 4)  # each half lacks a policy


def made(run: Run, rows: np.ndarray) -> list[np.ndarray]:
    """Return all arrays that the last rollout wrote for some agents, and their states."""
    fields = (array for array in run.buffer.fields.values() if array is not None)
    states = [[array for _, array in named(state)] for state in run.states]
    whole = [np.concatenate([np.array(a) for a in own]) for own in zip(*states, strict=True)]
    return [np.array(array)[:T, rows] for array in fields] + [array[rows] for array in whole]


@pytest.mark.parametrize(
    ("groups", "acts", "sizes", "network", "own_memory"),
    [
        (1, TURNS, (3, 2), "MLP", True),
        (4, TURNS, (1, 1), "LSTM", False),  # two groups in a part
        (2, HALVES, (3, 2), "MinGRU", True),
    ],
    ids=["one part", "parts of two groups", "parts without some policy"],
)
def test_each_row_has_the_bits_of_its_policy(monkeypatch, groups, acts, sizes, network, own_memory):
    """Observations don't depend on actions, so each policy can act for all agents alone.

    Weights of ``several`` are replaced, but not what acts by them.
    """
    monkeypatch.setattr(acting_in_kernel, "unified", lambda: not own_memory)
    several = Run(groups, sizes, acts=acts, network=network)
    alone = [Run(groups, sizes, network=network) for _ in several.weights]
    with emulated_gpu():
        way = several.way()
    monkeypatch.setattr(several, "way", lambda timer: way)
    for _ in range(2):
        several.weights = [several.drawn(seed + several.rollouts) for seed in range(3)]
        with emulated_gpu() as gpu:
            several.rollout()
        assert gpu.names == {f"{network.lower()}_act", "pack"}
        for policy, run in enumerate(alone):
            run.weights = several.weights[policy]
            with emulated_gpu():
                run.rollout()
            rows = np.flatnonzero(acts == policy)
            for ours, theirs in zip(made(several, rows), made(run, rows), strict=True):
                np.testing.assert_array_equal(ours, theirs)
    values = [np.array(run.buffer.values) for run in alone]
    assert (values[0] != values[1]).all() and (values[0] != values[2]).all()
    for ours, acted in zip(several.vec.sent, several.buffer.groups, strict=True):
        np.testing.assert_array_equal(ours[-T:], np.array(several.buffer.actions)[:, acted])
