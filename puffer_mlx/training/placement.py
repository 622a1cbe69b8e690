"""Choose the devices that act and train: as configured, or by a rule for ``auto``.

The rule uses the configuration, the policy and the machine, but no timings. So a configuration
always has the same placement on the same machine.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.distributed.single_process import SingleProcess
from puffer_mlx.errors import UserError
from puffer_mlx.ops.cpu_extension import count_cores
from puffer_mlx.policy.acting_on_gpu import MIN_ARRAY_SIZE, make_step_on_gpu
from puffer_mlx.policy.policy import Policy
from puffer_mlx.policy.rollout_on_gpu import MAX_ELEMENTS
from puffer_mlx.rollout.acting_in_c import make_actor
from puffer_mlx.rollout.in_steps import RolloutInSteps
from puffer_mlx.rollout.on_gpu import GPURollouts, device_env, rollouts_on_gpu
from puffer_mlx.rollout.policy_assignment import PolicyAssignment
from puffer_mlx.rollout.verified_rollouts import rollouts_agree
from puffer_mlx.system.devices import device_memory, has_gpu, kind
from puffer_mlx.trees import named_arrays
from puffer_mlx.vec.base import VecEnv

GPU_ENVS = "gpu-kernel"  # a value of train.rollout_device
DEVICE_PHRASES = {  # train.rollout_device in messages
    "cpu": "rollouts on the CPU",
    "gpu": "rollouts on the GPU",
    GPU_ENVS: "rollouts and environments on the GPU",
}
# If a step of all agents has at most this many operations per core, a CPU is at least as fast as a
# GPU. A core does 80 GFLOP/s, and a GPU takes 160 us per step
# (docs/decisions/0033-placement-by-rule.md).
OPERATIONS_PER_CORE = 12.8e6


class Acting(NamedTuple):
    """A policy, its environments and the configuration: all that acting depends on.

    Attributes:
        config: a valid configuration.
        vec: the environments.
        policy: the acting policy.
        assignment: in self-play, the policy that acts for each agent.
    """

    config: Config
    vec: VecEnv
    policy: Policy
    assignment: PolicyAssignment | None = None


@dataclass
class Placement:
    """The devices on which a run acts and trains.

    Attributes:
        learner: the device that trains, MLX's default device.
        rollout: the device that acts.
        overlap: True if the next rollout is collected during training.
        precision: ``train.precision``.
        reason: one line for the user that explains the choice; empty if there was no choice.
        one_kernel: True if a GPU acts with one kernel, which computes in fp32.
        gpu_rollouts: steps environments and policy on the GPU. None when the host steps
            environments.
        agents: number of agents.
    """

    learner: mx.Device
    rollout: mx.Device
    overlap: bool = False
    precision: str = "fp32"
    reason: str = ""
    one_kernel: bool = False
    gpu_rollouts: GPURollouts | None = None
    agents: int = 0

    @property
    def rollout_device(self) -> str:
        """Value of ``train.rollout_device`` that selects this placement of acting and training."""
        return GPU_ENVS if self.gpu_rollouts else kind(self.rollout)

    @property
    def acting_precision(self) -> str:
        """Precision in which the policy acts.

        This is fp32 if acting and training use different devices, or if one kernel acts. Otherwise
        it is the precision of training.
        """
        if self.gpu_rollouts is not None:
            return self.gpu_rollouts.acting_precision
        alone = self.one_kernel and self.rollout == mx.gpu
        return "fp32" if alone or self.rollout != self.learner else self.precision

    @property
    def needs_recompute(self) -> bool:
        """True if acting rounds differently: training then recomputes log-probabilities."""
        if self.gpu_rollouts is not None and self.rollout == self.learner:
            return self.gpu_rollouts.precision(self.agents) != self.precision
        return self.rollout != self.learner or self.acting_precision != self.precision


def overlaps(config: Config) -> bool:
    """Return True if the next rollout is collected during training.

    ``auto`` is True if a GPU trains. Without a GPU, acting and training would share the cores.
    """
    chosen = config.train.overlap
    return mx.default_device() == mx.gpu if chosen == "auto" else bool(chosen)


def rollout_cores(config: Config) -> int:
    """Return the number of CPU cores for environments and for acting.

    With overlap, half of the cores are reserved for training on a CPU, or a quarter for submitting
    work to a GPU that trains: with 12 of 16 cores for the rollout, an epoch is 15 % shorter than
    with all 16.
    """
    cores = count_cores()
    if overlaps(config):
        cores -= -(-cores // 2) if mx.default_device() == mx.cpu else cores // 4
    return max(1, cores)


def placement_notes(config: Config, placement: Placement) -> list[str]:
    """Return notes on a run's devices: why they were chosen, and which options don't help here."""
    lines = [placement.reason] if placement.reason else []
    one_gpu = placement.rollout == placement.learner == mx.gpu
    if placement.overlap and one_gpu and not config.facts.lags:
        lines.append(
            "train.overlap: rollout and training alternate on one GPU, and the policy still lags;"
            " hint: --train.rollout-device cpu, or --train.overlap 0"
        )
    elif placement.overlap and placement.learner == mx.cpu:
        count = count_cores()
        lines.append(
            f"train.overlap: no GPU, so rollout and training share {count} cores"
            if count > 1
            else "train.overlap: one core for rollout and training; hint: --train.overlap 0"
        )
    if placement.precision != "fp32" and placement.learner == mx.cpu:
        lines.append(
            f"train.precision {placement.precision}: CPUs compute in fp32 and only save memory;"
            " hint: fp32 is faster here"
        )
    return lines


def broadcast_from_rank0(
    ranks: SingleProcess, config: Config, choose: Callable[[Config], Placement]
) -> Placement:
    """Choose the placement on rank 0, and use it on all ranks.

    Otherwise ranks on different machines could choose differently, for example if their numbers of
    cores differ. If a rank's GPU fails verification, all ranks choose again without that kernel.

    Args:
        ranks: the ranks, including this process.
        config: the local configuration of this rank.
        choose: returns the placement for a configuration.

    Raises:
        UserError: If ``choose`` raises it, for example because this rank lacks rank 0's devices.
    """
    placement = None if ranks.rank else choose(config)
    if placement and ranks.size == 1:
        return placement
    keys = placement and {"rollout_device": placement.rollout_device, "overlap": placement.overlap}
    first_keys = json.loads(ranks.broadcast_text(json.dumps(keys)))
    if placement is None:
        placement = choose(replace(config, train=replace(config.train, **first_keys)))
    return broadcast_from_rank0(ranks, config, choose) if ranks.agree_on_disabled() else placement


def choose_placement(acting: Acting, weights: Any, resume_state: Mapping[str, Any]) -> Placement:
    """Choose the devices of a run from ``train.rollout_device``.

    With ``auto``, a resumed run uses its earlier device, and a new run uses the rule
    (``choose_rollout_device``).

    Args:
        acting: configuration, environments and policy.
        weights: the policy's weights, evaluated.
        resume_state: values of a resumed run's state, such as ``rollout_device``; empty for a new
            run.

    Raises:
        UserError: If this machine can't use the requested device.
    """
    config = acting.config
    learner = mx.default_device()
    requested = config.train.rollout_device
    if requested in ("gpu", GPU_ENVS) and not has_gpu():
        raise UserError(
            f"train.rollout_device is {requested}, but this build of MLX has no GPU",
            "--train.rollout-device cpu, or auto",
        )
    gpu_rollouts = _gpu_rollouts(acting, weights, learner)
    chosen = requested
    reason = ""
    if requested == GPU_ENVS and gpu_rollouts is None:
        chosen = "gpu"  # The kernel failed verification, which has been reported.
    elif requested == "auto":
        saved = str(resume_state.get("rollout_device", "auto"))
        chosen, reason = _resumed(saved, learner, gpu_rollouts)
    if chosen == "auto":
        chosen, why = choose_rollout_device(acting, weights, learner, gpu_rollouts)
        reason = f"{why}{reason}"
    placement = Placement(
        learner,
        mx.Device(mx.cpu if chosen == "cpu" else mx.gpu),
        overlaps(config),
        config.train.precision,
        reason,
        one_kernel=make_step_on_gpu(acting.policy) is not None,
        gpu_rollouts=gpu_rollouts if chosen == GPU_ENVS else None,
        agents=acting.vec.num_agents,
    )
    if placement.gpu_rollouts and config.train.overlap == "auto":
        placement.overlap = False  # One GPU acts and trains, so overlap would save no time.
    return placement


def choose_rollout_device(
    acting: Acting, weights: Any, learner: mx.Device, gpu_rollouts: GPURollouts | None
) -> tuple[str, str]:
    """Apply the rule of ``train.rollout_device auto``. Returns the device and the reason.

    Args:
        acting: configuration, environments and policy.
        weights: the policy's weights.
        learner: the device that trains.
        gpu_rollouts: steps environments and policy on the GPU; None when that is impossible.
    """
    if learner == mx.cpu:
        return "cpu", ""
    if gpu_rollouts is not None:
        return GPU_ENVS, f"{DEVICE_PHRASES[GPU_ENVS]}, {gpu_rollouts.description}"
    config = acting.config
    agents = acting.vec.num_agents
    cores = rollout_threads(config, rollout_cores(config))
    operations = 2 * agents * sum(array.size for _, array in named_arrays(weights))
    fits = operations <= OPERATIONS_PER_CORE * cores
    chosen = "cpu" if fits and make_actor(acting.policy, acting.assignment) else "gpu"
    if fits and chosen == "gpu":
        return chosen, f"{DEVICE_PHRASES[chosen]}: the policy has no C implementation"
    relation = "at most" if fits else "more than"
    return chosen, (
        f"{DEVICE_PHRASES[chosen]}: a step of {agents} agents takes {operations / 1e6:,.1f} million"
        f" operations, {relation} {OPERATIONS_PER_CORE / 1e6:g} for each of {cores} cores"
    )


def _gpu_rollouts(acting: Acting, weights: Any, learner: mx.Device) -> GPURollouts | None:
    """Return an object that steps environments and policy on the GPU.

    Returns None when this isn't requested, fails verification, or is impossible with ``auto``.

    Raises:
        UserError: When it is impossible although ``train.rollout_device`` requests it.
    """
    config, vec, policy, assignment = acting
    requested = config.train.rollout_device
    if requested != GPU_ENVS and (requested != "auto" or learner == mx.cpu):
        return None
    train = config.train
    gpu_rollouts = rollouts_on_gpu(policy, vec, train.horizon, train.precision, assignment)
    if requested == GPU_ENVS and (gpu_rollouts is None or learner == mx.cpu):
        _refuse_without(vec, learner)
    if gpu_rollouts is None:
        return None
    if needed := _missing_memory(gpu_rollouts, config.train.horizon, vec.num_agents):
        if requested == GPU_ENVS:
            raise UserError(
                f"train.rollout_device is {GPU_ENVS}, but {vec.num_agents} agents for"
                f" {config.train.horizon} steps need {needed / 1e9:,.1f} GB at least, and the GPU"
                f" has {device_memory() / 1e9:,.1f} GB",
                "fewer vec.total_agents, a shorter train.horizon, or --train.rollout-device auto",
            )
        return None
    return gpu_rollouts if rollouts_agree(policy, vec, gpu_rollouts, weights, assignment) else None  # type: ignore


def _resumed(saved: str, learner: mx.Device, gpu_rollouts: GPURollouts | None) -> tuple[str, str]:
    """Return a resumed run's saved device, or ``auto`` to choose again, and the reason.

    For ``auto`` the reason is a suffix of the new reason.
    """
    if saved == "auto" or learner == mx.cpu:
        return "auto", ""
    if saved == GPU_ENVS and gpu_rollouts is None:
        return "auto", "; this GPU can't step the environments as before"
    return saved, f"{DEVICE_PHRASES[saved]}, as before"


def _refuse_without(vec: VecEnv, learner: mx.Device) -> NoReturn:
    """Raise UserError with the reason why the GPU can't step these environments."""
    problem = f"train.rollout_device is {GPU_ENVS}, but"
    hint = "--train.rollout-device auto"
    if learner != mx.gpu:
        raise UserError(f"{problem} training is on the CPU", f"--base.device gpu, or {hint}")
    if device_env(vec) is None:
        raise UserError(
            f"{problem} {vec.spec.name} compiles only for a CPU",
            f"{hint}; docs/writing_envs.md describes environments for GPUs",
        )
    raise UserError(
        f"{problem} there are {vec.num_environments} environments, expected at least"
        f" {MIN_ARRAY_SIZE}, and all observations together must have fewer than {MAX_ELEMENTS}"
        " elements",
        f"another vec.total_agents, or {hint}",
    )


def _missing_memory(gpu_rollouts: GPURollouts | None, horizon: int, agents: int) -> int:
    """Return the bytes that a rollout in steps needs if the GPU has less memory, else 0."""
    needed = gpu_rollouts.nbytes(horizon, agents) if isinstance(gpu_rollouts, RolloutInSteps) else 0
    return needed if 0 < device_memory() < needed else 0
