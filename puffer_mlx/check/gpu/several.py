"""Item: several policies act in one launch, as each does in one of its own."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.check.gpu.arithmetic import ACTING, S, small_policy
from puffer_mlx.check.gpu.tools import Effort, at_most, need_gpu, on
from puffer_mlx.policy.acting_on_gpu import Crews, step_on_gpu
from puffer_mlx.policy.networks import NETWORKS
from puffer_mlx.policy.policy import Policy
from puffer_mlx.rollout.acting_in_kernel import crews_of
from puffer_mlx.trees import named

POLICIES = (0, 1, 0, 2, 0)  # who acts for five agents, and for the next five


def several(effort: Effort) -> str:
    """Of every network, for choices, masked ones and continuous actions."""
    need_gpu()
    worst = (-1.0, "")
    for network in NETWORKS:
        for sizes in ((5,), (2, 4), (1, 1, 1)):
            off = _apart(small_policy(network, sizes, reset=True), masked=len(sizes) == 2)
            worst = max(worst, (off, f"{network} {sizes}"))
    return at_most(worst[1], worst[0], ACTING)


def _apart(policy: Policy, masked: bool) -> float:
    """The largest difference of what is written, and of states."""
    rng, step = np.random.default_rng(5), step_on_gpu(policy)
    assert step is not None
    action, acts = policy.decoder.action, np.resize(POLICIES, S)
    legal = (rng.random((S, action.logits)) < 0.6).astype(np.uint8)
    given = rng.normal(size=(S, 20)).astype(np.float32), legal if masked else None
    ends = (rng.random(S) < 0.2).astype(np.float32)

    def launch(weights: mx.array, crews: Crews | None) -> list[np.ndarray]:
        state = tree_map(lambda s: s + 0.5, policy.initial_state(S))
        observations, mask = (None if a is None else mx.array(a) for a in given)
        noise, terminals = policy.distribution.noise(mx.random.key(1), (S,)), mx.array(ends)
        written = [mx.zeros((S, action.heads)), mx.zeros(S), mx.zeros(S)]
        mx.eval(written, observations, noise, terminals)
        states = step.in_blocks(step.state(state), crews)
        arguments: list[Any] = [weights, states, noise, observations, mask, terminals, *written]
        after = step.act(*arguments, seen=None, seats=crews and crews.seats)
        state = step.state_after(step.by_rows(after, crews))
        mx.eval(state)
        return [np.array(array) for array in (*written, *(own for _, own in named(state)))]

    with on(mx.Device(mx.gpu)):
        packed = [step.weights(policy.init(mx.random.key(seed))) for seed in range(max(acts) + 1)]
        found = launch(mx.stack(packed), crews_of(acts, step.block(S)))
        apart = [0.0]
        for number, weights in enumerate(packed):
            pairs = zip(found, launch(weights, None), strict=True)
            apart += [np.abs(ours - own)[acts == number].max() for ours, own in pairs]
    return float(max(apart))
