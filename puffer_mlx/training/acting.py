"""The one place that decides how a policy acts: in C, by kernels, or through MLX."""

from typing import Any

import mlx.core as mx

from puffer_mlx.policy.acting_on_gpu import FEWEST, StepOnGPU, step_on_gpu
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo.update import Executables
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.acting import Acting
from puffer_mlx.rollout.acting_in_c import ActingInC
from puffer_mlx.rollout.acting_in_kernel import ActingInKernel
from puffer_mlx.rollout.acting_in_mlx import (
    ActingInMLX,
    SampledActingInMLX,
    Streams,
    each_group,
    few_parts,
)
from puffer_mlx.rollout.compiled_step import make_actor
from puffer_mlx.rollout.on_gpu import EnvironmentsOnGPU, RolloutsOnGPU
from puffer_mlx.rollout.several_actors import make_actors
from puffer_mlx.selfplay.seats import Seats
from puffer_mlx.system.backend import backend_of
from puffer_mlx.vec.base import WholeRollouts


def choose_acting(
    device: mx.Device,
    precision: str,
    policy: Policy,
    run: Executables,
    environments: Any,
    streams: Streams,
    timer: PhaseTimer,
    seats: Seats | None = None,
    launch_steps: int = 0,
) -> Acting:
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
    if seats is not None:
        return _for_several(device, precision, policy, run, environments, streams, timer, seats)
    if isinstance(environments, EnvironmentsOnGPU):
        return RolloutsOnGPU(environments.kernel, streams, timer, launch_steps)
    whole = isinstance(environments, WholeRollouts)
    if device == mx.cpu and precision == "fp32" and whole and (actor := make_actor(policy)):
        return ActingInC(actor, timer)
    if kernel := _kernel(device, precision, policy, environments):
        return ActingInKernel(kernel, streams, timer)
    parts = few_parts if backend_of(device) != "cpu" else each_group
    return SampledActingInMLX(ActingInMLX(run.act, streams, timer, parts), run.step)


def _kernel(
    device: mx.Device, precision: str, policy: Policy, environments: Any
) -> StepOnGPU | None:
    """The policy's step as one kernel of a GPU; None where it acts in another way."""
    agents = environments.num_agents // few_parts(environments.num_groups)
    if backend_of(device) == "cpu" or precision != "fp32" or agents < FEWEST:
        return None
    return step_on_gpu(policy)


def _for_several(
    device: mx.Device,
    precision: str,
    policy: Policy,
    run: Executables,
    environments: Any,
    streams: Streams,
    timer: PhaseTimer,
    seats: Seats,
) -> Acting:
    whole = isinstance(environments, WholeRollouts)
    if (
        device == mx.cpu
        and precision == "fp32"
        and whole
        and (actors := make_actors(policy, seats))
    ):
        return ActingInC(actors, timer)
    if kernel := _kernel(device, precision, policy, environments):
        return ActingInKernel(kernel, streams, timer, seats)
    parts = few_parts if backend_of(device) != "cpu" else each_group
    return ActingInMLX(run.act_by_seats, streams, timer, parts, seats)
