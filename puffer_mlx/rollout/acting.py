"""How a policy acts: the contract of filling a rollout buffer, and the one place that chooses.

There are three ways: by the policy's step in C, a whole rollout in one call (``acting_in_c.py``);
by kernels of a GPU, one for each half of the agents and step (``acting_in_kernel.py``), or whole
rollouts with their environments (``on_gpu.py``); and through MLX, step by step
(``acting_in_mlx.py``).
"""

from typing import Any, Protocol

import mlx.core as mx

from puffer_mlx.policy.acting_on_gpu import FEWEST, step_on_gpu
from puffer_mlx.policy.policy import Policy
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.act_functions import ActFunctions
from puffer_mlx.rollout.acting_in_c import ActingInC, make_actor
from puffer_mlx.rollout.acting_in_kernel import ActingInKernel
from puffer_mlx.rollout.acting_in_mlx import ActingInMLX, Streams, each_group, few_parts
from puffer_mlx.rollout.buffer import RolloutBuffer, State
from puffer_mlx.rollout.on_gpu import EnvironmentsOnGPU, RolloutsOnGPU
from puffer_mlx.rollout.seats import Seats
from puffer_mlx.system.backend import backend_of
from puffer_mlx.vec.base import WholeRollouts


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
    on_cpu, plain = backend_of(device) == "cpu", precision == "fp32"
    agents = environments.num_agents // few_parts(environments.num_groups)
    whole = isinstance(environments, WholeRollouts)
    if whole and device == mx.cpu and plain and (actor := make_actor(policy, seats)):
        return ActingInC(actor, timer)
    if plain and not on_cpu and agents >= FEWEST and (kernel := step_on_gpu(policy)):
        return ActingInKernel(kernel, streams, timer, seats)
    parts = each_group if on_cpu else few_parts
    return ActingInMLX(run, streams, timer, parts, seats)
