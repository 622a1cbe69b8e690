"""Choose the implementation of acting. All of them fill a rollout buffer.

| file | implementation |
| --- | --- |
| ``acting_in_c.py`` | CPU: one C call per rollout |
| ``acting_in_kernel.py`` | GPU: one kernel launch for each step and half of the agents |
| ``acting_in_mlx.py`` | any device: MLX's operations, step by step |

A GPU that steps the environments, too, needs none of them: see ``on_gpu.py``.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.policy.acting_on_gpu import FEWEST, agrees, step_on_gpu
from puffer_mlx.policy.policy import Policy
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.act_functions import compile_act
from puffer_mlx.rollout.acting_in_c import ActingInC, make_actor
from puffer_mlx.rollout.acting_in_kernel import ActingInKernel
from puffer_mlx.rollout.acting_in_mlx import ActingInMLX, Streams, each_group, few_parts
from puffer_mlx.rollout.buffer import RolloutBuffer, State
from puffer_mlx.rollout.seats import Seats
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import building
from puffer_mlx.trees import named
from puffer_mlx.vec.base import Collected, CollectsRollouts
from puffer_mlx.vec.rollout_loop import AGENTS_PER_CALL, ActFunction


class RolloutBackend(Protocol):
    """An implementation of acting.

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
        """Fill a buffer with T steps of all agents.

        The result depends on the arguments only, not on the timing of threads or streams.

        Args:
            buffer: Buffer to fill. Row 0 is set already (``RolloutBuffer.begin``).
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
    seats: Seats | None = None,
) -> RolloutBackend:
    """Return the implementation of acting for a device, policy and environments.

    Args:
        device: Device that acts.
        precision: Type of the weights: ``fp32``, ``bf16`` or ``fp16``.
        policy: The acting policy.
        environments: Environments to act in.
        streams: Returns the MLX streams for acting. Unused if C acts.
        timer: Measures the phases ``eval_*``.
        seats: Assignment of policies to agents in self-play. Weights are then a list, one item per
            policy.
    """
    on_cpu = backend(device) == "cpu"
    plain = precision == "fp32"
    agents = environments.num_agents // few_parts(environments.num_groups)
    whole = isinstance(environments, CollectsRollouts)
    if whole and device == mx.cpu and plain and (actor := make_actor(policy, seats)):
        return ActingInC(actor, timer)
    kernel = step_on_gpu(policy) if plain and not on_cpu and agents >= FEWEST else None
    if kernel is not None and agrees(policy, kernel, agents):
        return ActingInKernel(kernel, streams, timer, seats)
    parts = each_group if on_cpu else few_parts
    return ActingInMLX(compile_act(policy, seats), streams, timer, parts, seats)


class FrozenEnvs:
    """Environments that don't step. A rollout in them acts on the rows that are in the buffer.

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
        """Do nothing."""

    def wait(self, group: int) -> None:
        """Do nothing."""

    def collect(
        self, steps: int, act: tuple[int, int], actions: Any, out: Any, spans: int = 0
    ) -> Collected:
        """Act ``steps`` times for each part of the agents, in parallel."""
        function = ActFunction(act[0])

        def part(first: int) -> None:
            for t in range(steps):
                function(act[1], t, first, min(AGENTS_PER_CALL, self.num_agents - first))

        list(self._pool.map(part, range(0, self.num_agents, AGENTS_PER_CALL)))
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
    """Recompute the recurrent states in the middle of a rollout by acting on its rows again.

    Args:
        sampler: Implementation that collected the rollout.
        device: Device of ``sampler``.
        buffer: Buffer with the rows, not changed.
        weights: Weights that acted in the rollout.
        states: Recurrent state of each group before the first step.
        noise: (T, N, heads), noise of the rollout.
        steps: (N,) int, number of steps to replay for each agent.

    Returns:
        Recurrent state of each group after these steps.
    """
    result = reached = [*states]
    if not named(result[0]):
        return result
    begin = 0
    agents = np.split(steps, len(result))
    with ThreadPoolExecutor(1) as pool:
        frozen = FrozenEnvs(len(steps), len(result), pool)
        for end in np.unique(steps[steps > 0]).tolist():
            with building, mx.stream(device):
                drawn = mx.contiguous(noise[begin:end])
            mx.eval(drawn)
            rows = buffer.excerpt(begin, end)
            reached = sampler.collect(rows, frozen, weights, reached, drawn)
            with building, mx.stream(device):
                ends = [mx.array(own == end) for own in agents]
                result = [_chosen(*each) for each in zip(ends, reached, result, strict=True)]
            mx.eval(result)
            begin = end
    return result


def _chosen(rows: mx.array, state: State, other: State) -> State:
    """Return ``state`` for the agents where ``rows`` (n,) is True, and ``other`` elsewhere."""

    def choose(one: mx.array, two: mx.array) -> mx.array:
        return mx.where(rows.reshape(-1, *[1] * (one.ndim - 1)), one, two)

    return tree_map(choose, state, other)
