"""A rollout's step of a group: a policy that acts, made ready for weights that stay the same.

It is one kernel on a GPU that has it (``acting_on_gpu.py``), else the policy's step in plain MLX,
compiled.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.policy.acting_on_gpu import step_on_gpu
from puffer_mlx.policy.policy import Policy
from puffer_mlx.system.backend import backend

Weights = Any  # a tree of mx.array
State = Any  # a tree of mx.array


class RolloutStep(NamedTuple):
    """What computes one step of n agents, with a rollout's weights.

    Attributes:
        act: of (observations (n, D), state, noise (n, heads), mask (n, A) or None, terminals (n,)):
            one array (heads + 2, n) float32, to be read by the host in one piece, of actions,
            log-probabilities and values; and the next state.
        state: what ``act`` takes of the network's state.
        state_after: the network's state, of what ``act`` returned.
        outputs: of (observations, state, terminals): ``act`` without choosing; None where it can't
            be had alone.
    """

    act: Callable[..., tuple[mx.array, Any]]
    state: Callable[[State], Any]
    state_after: Callable[[Any], State]
    outputs: Callable[..., Any] | None = None


def compile_acting(policy: Policy) -> Callable[[Weights], RolloutStep]:
    """Of weights, evaluated: the step on the device that is the default when it is asked for."""

    def act(weights, observations, state, noise, mask, terminals):
        keep = policy.keep(terminals)
        actions, logprobs, values, state = policy.act(
            weights, observations, state, noise, mask, keep
        )
        return mx.concatenate([actions.T, logprobs[None], values[None]]), state

    def outputs(weights, observations, state, terminals):
        return policy.step(weights, observations, state, policy.keep(terminals))

    plain, without_choosing = mx.compile(act), mx.compile(outputs)
    kernel = step_on_gpu(policy)
    launched = kernel and mx.compile(kernel.act)

    def acting(weights: Weights) -> RolloutStep:
        if kernel and launched and backend() != "cpu" and kernel.takes(weights):
            packed = kernel.weights(weights)
            mx.eval(packed)  # once, and not with the first step
            return RolloutStep(partial(launched, packed), kernel.state, kernel.state_after)
        return RolloutStep(
            partial(plain, weights), _same, _same, partial(without_choosing, weights)
        )

    return acting


def _same(state: State) -> State:
    return state
