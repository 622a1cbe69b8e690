"""The one place that decides how a policy acts: by its step in C where it can, else through MLX."""

from typing import Any

import mlx.core as mx

from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo.update import Executables
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.acting import Acting
from puffer_mlx.rollout.acting_in_c import ActingInC
from puffer_mlx.rollout.acting_in_mlx import ActingInMLX, SampledActingInMLX, Streams
from puffer_mlx.rollout.compiled_step import make_actor
from puffer_mlx.vec.base import WholeRollouts


def choose_acting(
    device: mx.Device,
    precision: str,
    policy: Policy,
    run: Executables,
    environments: Any,
    streams: Streams,
    timer: PhaseTimer,
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
    """
    whole = isinstance(environments, WholeRollouts)
    if device == mx.cpu and precision == "fp32" and whole and (actor := make_actor(policy)):
        return ActingInC(actor, timer)
    return SampledActingInMLX(ActingInMLX(run.acting, streams, timer))
