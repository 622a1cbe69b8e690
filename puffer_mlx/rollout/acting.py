"""How a policy acts: the contract of filling a rollout buffer, and the one place that chooses.

There are three ways: by the policy's step in C, a whole rollout in one call (``acting_in_c.py``);
by kernels of a GPU, one for each half of the agents and step (``acting_in_kernel.py``), or whole
rollouts with their environments (``on_gpu.py``); and through MLX, step by step
(``acting_in_mlx.py``).
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
from puffer_mlx.rollout.act_functions import ActFunctions
from puffer_mlx.rollout.acting_in_c import ActingInC, make_actor
from puffer_mlx.rollout.acting_in_kernel import ActingInKernel
from puffer_mlx.rollout.acting_in_mlx import ActingInMLX, Streams, each_group, few_parts
from puffer_mlx.rollout.buffer import RolloutBuffer, State
from puffer_mlx.rollout.on_gpu import EnvironmentsOnGPU, RolloutsOnGPU
from puffer_mlx.rollout.seats import Seats
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import building
from puffer_mlx.trees import named
from puffer_mlx.vec.base import Collected, WholeRollouts
from puffer_mlx.vec.rollout_loop import ACT, PART


class Sampler(Protocol):
    """A way of acting.

    Attributes:
        in_c: whether a rollout is one call of C, the policy's steps included.
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

        The result depends on the arguments only: not on threads, streams or what ran faster.

        Args:
            buffer: where to write; row 0 must be there (``RolloutBuffer.begin``).
            environments: a ``VecEnv``, none of them stepping.
            weights: the acting policy's, evaluated, where it acts.
            states: recurrent state of each group, evaluated.
            noise: (T, N, heads) float32, evaluated, from ``distribution.noise``.

        Returns:
            The groups' recurrent states after the last step, evaluated.
        """
        ...


def choose_acting(
    device: mx.Device,
    precision: str,
    policy: Policy,
    run: ActFunctions,
    environments: Any,
    streams: Streams,
    timer: PhaseTimer,
    seats: Seats | None = None,
    launch_steps: int = 0,
) -> Sampler:
    """How a policy acts on a device.

    Args:
        device: where.
        precision: what its weights are in: ``fp32``, ``bf16`` or ``fp16``.
        policy: what acts.
        run: its compiled functions.
        environments: what it acts in.
        streams: gives those that acting through MLX takes; in C the environments' threads act.
        timer: gets the phases ``eval_*``.
        seats: of self-play, where several policies act: then weights are a list of each one's.
        launch_steps: of ``RolloutsOnGPU``.
    """
    if isinstance(environments, EnvironmentsOnGPU):
        return RolloutsOnGPU(environments.kernel, streams, timer, launch_steps)
    on_cpu, plain = backend(device) == "cpu", precision == "fp32"
    agents = environments.num_agents // few_parts(environments.num_groups)
    whole = isinstance(environments, WholeRollouts)
    if whole and device == mx.cpu and plain and (actor := make_actor(policy, seats)):
        return ActingInC(actor, timer)
    kernel = step_on_gpu(policy) if plain and not on_cpu and agents >= FEWEST else None
    if kernel is not None and agrees(policy, kernel, agents):
        return ActingInKernel(kernel, streams, timer, seats)
    parts = each_group if on_cpu else few_parts
    return ActingInMLX(run, streams, timer, parts, seats)


class FrozenEnvs:
    """Environments that don't step: a rollout leaves their rows as they are and only acts.

    Args:
        num_agents: N.
        num_groups: Q.
        pool: threads that call an actor in C.
    """

    def __init__(self, num_agents: int, num_groups: int, pool: ThreadPoolExecutor) -> None:
        self.num_agents, self.num_groups, self._pool = num_agents, num_groups, pool

    def send(self, group: int, actions: Any, out: Any) -> None:
        """Do nothing."""

    def wait(self, group: int) -> None:
        """Do nothing."""

    def collect(
        self, steps: int, act: tuple[int, int], actions: Any, out: Any, spans: int = 0
    ) -> Collected:
        """Let each part of the agents act ``steps`` times, on any thread."""
        function = ACT(act[0])

        def part(first: int) -> None:
            for t in range(steps):
                function(act[1], t, first, min(PART, self.num_agents - first))

        list(self._pool.map(part, range(0, self.num_agents, PART)))
        return Collected(0.0, 0.0, [])


def replay_states(
    sampler: Sampler,
    device: mx.Device,
    buffer: RolloutBuffer,
    weights: Any,
    states: Sequence[State],
    noise: mx.array,
    steps: np.ndarray,
) -> list[State]:
    """Return the groups' recurrent states after a part of a rollout, by acting on its rows again.

    Args:
        sampler: acted in the rollout.
        device: the device that ``sampler`` acts on.
        buffer: has the rows. Nothing is written to it.
        weights: as in the rollout, as the following two.
        states: recurrent state of each group before the first step.
        noise: (T, N, heads).
        steps: (N,) int, the number of each agent's steps.
    """
    result = reached = [*states]
    if not named(result[0]):
        return result
    begin, agents = 0, np.split(steps, len(result))
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
    """Return a state's rows where ``rows`` (n,) is True, and those of another elsewhere."""

    def choose(one: mx.array, two: mx.array) -> mx.array:
        return mx.where(rows.reshape(-1, *[1] * (one.ndim - 1)), one, two)

    return tree_map(choose, state, other)
