"""Choose the implementation of acting, which fills a rollout buffer with a policy's steps.

| file | implementation |
| --- | --- |
| ``acting_in_c.py`` | CPU: one C call per rollout |
| ``acting_in_kernel.py`` | GPU: one kernel launch for each step and half of the agents |
| ``acting_in_mlx.py`` | any device: MLX operations for each step |

They are used if the environments step on the CPU. If a GPU steps them, see ``on_gpu.py``.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.policy.acting_on_gpu import MIN_ARRAY_SIZE, make_step_on_gpu, step_agrees
from puffer_mlx.policy.policy import Policy
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.act_functions import compile_act
from puffer_mlx.rollout.acting_in_c import ActingInC, make_actor
from puffer_mlx.rollout.acting_in_kernel import ActingInKernel
from puffer_mlx.rollout.acting_in_mlx import (
    ActingInMLX,
    Streams,
    one_shard_per_group,
    shards_for_gpu,
)
from puffer_mlx.rollout.buffer import RolloutBuffer, State
from puffer_mlx.rollout.policy_assignment import PolicyAssignment
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import building
from puffer_mlx.trees import named_arrays
from puffer_mlx.vec.base import Collected, CollectsRollouts
from puffer_mlx.vec.rollout_loop import AGENTS_PER_CALL, ActFunction


class RolloutBackend(Protocol):
    """Interface for collecting rollouts of a policy in environments.

    Attributes:
        in_c: True if a rollout is one C call, including the policy's steps.
    """

    in_c: bool

    def collect(
        self,
        buffer: RolloutBuffer,
        environments: Any,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """Collect a rollout: fill a buffer with T steps of a policy and all its environments.

        The result depends on the arguments only, not on the timing of threads or streams.

        Args:
            buffer: Buffer to fill. Its row 0 is filled already (``RolloutBuffer.begin``).
            environments: A ``VecEnv`` without a step in progress.
            weights: Weights of the acting policy on the acting device, evaluated.
            states: Recurrent state of each group, evaluated.
            noise: (T, N, heads) float32 from ``distribution.noise``, evaluated.

        Returns:
            Recurrent state of each group after the last step, evaluated.
        """
        ...


def choose_acting(
    device: mx.Device,
    precision: str,
    policy: Policy,
    environments: Any,
    streams: Streams,
    timer: PhaseTimer,
    assignment: PolicyAssignment | None = None,
) -> RolloutBackend:
    """Choose how a policy acts in rollouts (in C, by a GPU kernel, or through MLX).

    Returns the ``RolloutBackend`` for a device, policy and environments.

    Args:
        device: Device that acts.
        precision: Type of the weights: ``fp32``, ``bf16`` or ``fp16``.
        policy: The acting policy.
        environments: Environments to act in.
        streams: Returns the MLX streams for acting. Unused by ``ActingInC``.
        timer: Measures the phases ``eval_*``.
        assignment: Policy of each agent in self-play; weights are then a list, one item
            per policy.
    """
    on_cpu = backend(device) == "cpu"
    in_float32 = precision == "fp32"
    agents = environments.num_agents // shards_for_gpu(environments.num_groups)
    if isinstance(environments, CollectsRollouts) and device == mx.cpu and in_float32:
        actor = make_actor(policy, assignment)
        if actor is not None:
            return ActingInC(actor, timer)
    if in_float32 and not on_cpu and agents >= MIN_ARRAY_SIZE:
        kernel = make_step_on_gpu(policy)
        if kernel is not None and step_agrees(policy, kernel, agents):
            return ActingInKernel(kernel, streams, timer, assignment)
    shards = one_shard_per_group if on_cpu else shards_for_gpu
    return ActingInMLX(compile_act(policy, assignment), streams, timer, shards, assignment)


class FrozenEnvs:
    """Environments that never step, to act again on the observations that a buffer contains.

    Args:
        num_agents: Number of agents N.
        num_groups: Number of groups Q.
        pool: Threads that call the C actor.
    """

    def __init__(self, num_agents: int, num_groups: int, pool: ThreadPoolExecutor) -> None:
        self.num_agents = num_agents
        self.num_groups = num_groups
        self._pool = pool

    def send(self, group: int, actions: Any, out: Any) -> None:
        """Ignore the actions of a group, because these environments never step."""

    def wait(self, group: int) -> None:
        """Return at once, as there is no step of the environments to wait for."""

    def collect(
        self, steps: int, act: tuple[int, int], actions: Any, out: Any, spans: int = 0
    ) -> Collected:
        """Let the C actor act ``steps`` times for all agents; blocks of agents run in parallel.

        The environments don't step.
        """
        function = ActFunction(act[0])

        def act_for_block(first: int) -> None:
            for t in range(steps):
                function(act[1], t, first, min(AGENTS_PER_CALL, self.num_agents - first))

        list(self._pool.map(act_for_block, range(0, self.num_agents, AGENTS_PER_CALL)))
        return Collected(0.0, 0.0, [])


def replay_states(
    sampler: RolloutBackend,
    device: mx.Device,
    buffer: RolloutBuffer,
    weights: Any,
    states: Sequence[State],
    noise: mx.array,
    steps: np.ndarray,
) -> list[State]:
    """Recompute recurrent states in the middle of a rollout by acting on its observations again.

    Args:
        sampler: Implementation of acting that collected the rollout.
        device: Device of ``sampler``.
        buffer: The rollout, not changed.
        weights: Weights that acted in the rollout.
        states: Recurrent state of each group before the first step.
        noise: (T, N, heads), noise of the rollout.
        steps: (N,) int, number of steps to replay for each agent.

    Returns:
        Recurrent state of each group after these steps.
    """
    result = [*states]
    if not named_arrays(result[0]):
        return result
    # All agents act from one number of steps to the next larger one. Agents that need no more steps
    # keep the states they then have in `result`.
    current = result
    begin = 0
    steps_of_groups = np.split(steps, len(result))
    with ThreadPoolExecutor(1) as pool:
        frozen = FrozenEnvs(len(steps), len(result), pool)
        for end in np.unique(steps[steps > 0]).tolist():
            with building, mx.stream(device):
                step_noise = mx.contiguous(noise[begin:end])
            mx.eval(step_noise)
            rows = buffer.excerpt(begin, end)
            current = sampler.collect(rows, frozen, weights, current, step_noise)
            with building, mx.stream(device):
                is_last = [mx.array(group_steps == end) for group_steps in steps_of_groups]
                groups = zip(is_last, current, result, strict=True)
                result = [_select_states(*group) for group in groups]
            mx.eval(result)
            begin = end
    return result


def _select_states(condition: mx.array, state: State, other: State) -> State:
    """Merge recurrent states: ``state`` where the condition (n,) is True, else ``other``."""

    def choose(a: mx.array, b: mx.array) -> mx.array:
        return mx.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return tree_map(choose, state, other)
