"""Where the policy acts and where it is trained: what that decides, and what a run says of it."""

from dataclasses import dataclass

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.policy.rollout_on_gpu import RolloutOnGPU
from puffer_mlx.system.devices import kind

WHOLE = "gpu-kernel"  # of train.rollout_device


@dataclass
class Placement:
    """Where a run computes.

    Attributes:
        learner: the device that trains: MLX's default one.
        rollout: the device that acts.
        overlap: whether the next rollout is collected beside training.
        precision: what the policy is trained in.
        reason: why it acts there, one line; empty where there was no choice.
        one_kernel: whether a GPU acts by one kernel, which knows fp32 alone.
        whole: the kernel of whole rollouts, environments included; None: the environments are C's.
    """

    learner: mx.Device
    rollout: mx.Device
    overlap: bool = False
    precision: str = "fp32"
    reason: str = ""
    one_kernel: bool = False
    whole: RolloutOnGPU | None = None

    @property
    def rollout_device(self) -> str:
        """What ``train.rollout_device`` would ask for this."""
        return WHOLE if self.whole else kind(self.rollout)

    @property
    def acting_precision(self) -> str:
        """What the policy acts in: the learner's on its device, fp32 elsewhere.

        And where one kernel acts, which takes less time than the lower type saves.
        """
        alone = self.one_kernel and self.rollout == mx.gpu
        return "fp32" if alone or self.rollout != self.learner else self.precision

    @property
    def away(self) -> bool:
        """Whether acting and training round differently: another device, or another type."""
        return self.rollout != self.learner or self.acting_precision != self.precision


def overlaps(config: Config) -> bool:
    """Whether the next rollout is collected beside training; auto: where a GPU trains.

    The cores alone would have to be divided: then nothing is gained by a policy that lags.
    """
    chosen = config.train.overlap
    return mx.default_device() == mx.gpu if chosen == "auto" else bool(chosen)


def rollout_cores(config: Config) -> int:
    """Cores for environments and for acting on a CPU.

    All of them, unless training goes on beside. On a CPU it needs half of them; a GPU's work is
    submitted faster if a quarter is left (an epoch with 12 of 16 is 15 % shorter than with all).
    """
    cores = threads()
    if overlaps(config):
        cores -= -(-cores // 2) if mx.default_device() == mx.cpu else cores // 4
    return max(1, cores)


def notes(config: Config, placement: Placement) -> list[str]:
    """What to tell about a placement before the run: the reason, and switches that can't help."""
    lines = [placement.reason] if placement.reason else []
    one_gpu = placement.rollout == placement.learner == mx.gpu
    if placement.overlap and one_gpu and not config.facts.lags:
        lines.append(
            "train.overlap: one GPU does both halves, so they take turns and the policy still lags;"
            " hint: --train.rollout-device cpu, or --train.overlap 0"
        )
    elif placement.overlap and placement.learner == mx.cpu:
        count = threads()
        lines.append(
            f"train.overlap: no GPU, so each half has its own part of {count} cores"
            if count > 1
            else "train.overlap: one core does both halves; hint: --train.overlap 0"
        )
    if placement.precision != "fp32" and placement.learner == mx.cpu:
        lines.append(
            f"train.precision {placement.precision}: CPUs compute in fp32 and only store less;"
            " hint: fp32 is faster here"
        )
    return lines
