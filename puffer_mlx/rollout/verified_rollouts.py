"""Verify that rollouts with environments on a GPU equal rollouts with the host's environments."""

from functools import partial
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import verification
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo.precision import cast_weights
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.act_functions import plain_act
from puffer_mlx.rollout.acting_in_mlx import ActingInMLX
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.rollout.on_gpu import BufferOnGPU, EnvironmentsOnGPU, GPURollouts, RolloutsOnGPU
from puffer_mlx.rollout.policy_assignment import PolicyAssignment
from puffer_mlx.vec.native.vec import NativeVec

VERIFIED_STEPS = 4  # steps of the compared rollouts
COMPARED_FIELDS = "observations", "actions", "logprobs", "values", "rewards", "terminals", "masks"
GPU_ROLLOUTS = Implementation((), "the rollout with environments", gpu=RolloutsOnGPU)


def rollouts_agree(
    policy: Policy,
    vec: NativeVec,
    kernel: GPURollouts,
    weights: Any,
    assignment: PolicyAssignment | None = None,
) -> bool:
    """Check GPU rollouts against the host's. Returns True if they are equal.

    The first call on a machine compares ``VERIFIED_STEPS`` steps, then restores the environments'
    state. Later calls return the stored answer.

    Args:
        policy: The acting policy.
        vec: Environments on the host.
        kernel: GPU rollouts to verify.
        weights: Weights of the policy.
        assignment: Policy of each agent in self-play.
    """
    start = vec.state()
    if not verification.uses_gpu_kernels() or start is None:
        return not GPU_ROLLOUTS.is_refused
    rollout = partial(_rollout, policy, vec, kernel, start, assignment)
    context = f"rollout {vec.spec} {kernel.game} {kernel.description} {policy}"
    kind = kernel.precision(vec.num_agents)
    try:
        verification.Verified(rollout, context=context, kind=kind, draws=True).verify((weights,))
    finally:
        vec.restore(start)
    return not GPU_ROLLOUTS.is_refused


def _rollout(
    policy: Policy,
    vec: NativeVec,
    kernel: GPURollouts,
    start: Any,
    assignment: PolicyAssignment | None,
    weights: Any,
) -> list[mx.array | None]:
    """Collect a rollout on the GPU or the host, and return its fields, to compare both.

    ``verification.Verified`` calls this function for both, and switches ``GPU_ROLLOUTS``.

    Args:
        policy: The acting policy.
        vec: Environments on the host.
        kernel: GPU rollouts.
        start: State of the environments at the start.
        assignment: Policy of each agent in self-play.
        weights: Weights of the policy.
    """
    vec.restore(start)
    on_gpu = GPU_ROLLOUTS.choose() is not None
    device = mx.default_device()
    timer = PhaseTimer("", enabled=False)
    sizes = vec.spec, VERIFIED_STEPS, vec.num_agents

    def streams() -> list[mx.Stream]:
        return [mx.default_stream(device)]

    environments: Any
    buffer: Any
    acting: Any
    if on_gpu:
        groups = 1
        environments = EnvironmentsOnGPU(vec, kernel)
        buffer = BufferOnGPU(*sizes, groups)
        acting = RolloutsOnGPU(kernel, streams, timer, VERIFIED_STEPS)
        weights = cast_weights(weights, kernel.acting_precision)
    else:
        groups = vec.num_groups
        environments = vec
        buffer = RolloutBuffer(*sizes, groups)
        acting = ActingInMLX(plain_act(policy, assignment), streams, timer, assignment=assignment)
    weights = weights if assignment is None else [weights] * (1 + assignment.opponents)
    states = [policy.initial_state(vec.num_agents // groups) for _ in range(groups)]
    noise = policy.distribution.noise(mx.random.key(0), (VERIFIED_STEPS, vec.num_agents))
    mx.eval(weights, states, noise)
    buffer.reset(environments)
    buffer.begin(buffer)
    acting.collect(buffer, environments, weights, states, noise)
    fields = buffer.fields
    arrays = [fields.get(name) for name in COMPARED_FIELDS]
    return [None if array is None else mx.array(array)[:VERIFIED_STEPS] for array in arrays]
