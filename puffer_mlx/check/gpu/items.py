"""Every item, in the order in which they run: what is small and basic first."""

import functools
import os
import traceback
from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx
import psutil

from puffer_mlx.check.gpu import (
    arithmetic,
    live,
    loss,
    minibatch,
    overlap,
    placement,
    precisions,
    several,
    speeds,
    upkeep,
    whole,
)
from puffer_mlx.check.gpu.tools import Effort, Failed, Skipped, need_gpu
from puffer_mlx.errors import UserError
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.ppo.precision import DTYPES
from puffer_mlx.system.version import version_text

PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"


class Item(NamedTuple):
    """One thing to check.

    Args:
        name: short, without spaces.
        title: what holds if it passes.
        check: returns the number behind it; raises Skipped or Failed, or anything that went wrong.
    """

    name: str
    title: str
    check: Callable[[Effort], str]


class Verdict(NamedTuple):
    """What became of an item; ``text`` is the number behind it, or why."""

    verdict: str
    text: str
    details: str = ""  # of an exception that nobody expected


def machine(effort: Effort) -> str:
    """Always passes; what a report needs."""
    lines = dict(line.split(maxsplit=1) for line in version_text().splitlines())
    memory = psutil.virtual_memory().total / 2**30
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    facts = f"{threads()} cores, {memory:.0f} GiB, load {load:.1f}"
    return f"{lines['device']}; {lines['platform']}; {facts}; MLX {lines['MLX']}"


def _on_cpu(precision: str, effort: Effort) -> str:
    return arithmetic.fused(mx.Device(mx.cpu), precision)


def _on_gpu(precision: str, effort: Effort) -> str:
    need_gpu()
    return arithmetic.fused(mx.Device(mx.gpu), precision)


def _kernels() -> list[Item]:
    found = []
    for device, check in (("cpu", _on_cpu), ("gpu", _on_gpu)):
        for name in DTYPES:
            what = f"fused operations of the {device.upper()} in {name} against plain MLX"
            found.append(Item(f"kernels-{device}-{name}", what, functools.partial(check, name)))
    return found


ITEMS = (
    Item("machine", "machine and versions", machine),
    *_kernels(),
    Item("minibatch", "advantages, draw and gathers on the GPU as on the CPU", minibatch.steps),
    Item("loss", "the loss and its gradients by closed form as on the CPU", loss.closed_form),
    Item("steps", "steps of a policy are its scan", arithmetic.steps_and_scan),
    Item("acting", "a rollout's step as one kernel, against the CPU", arithmetic.acting),
    Item("several", "several policies in one launch, each as in its own", several.several),
    Item("one-launch", "rollouts and environments in one launch", whole.one_launch),
    Item("gradients", "a policy's gradients, against float32 on the CPU", arithmetic.gradients),
    Item("round-trip", "arrays from CPU to GPU and back", placement.round_trip),
    Item("where-to-act", "auto finds the device to act on", placement.where_to_act),
    Item("minibatch-5", "a minibatch of PufferLib 5.0's as on the CPU", live.minibatch),
    Item("same-epoch", "an epoch on the GPU as on the CPU", placement.same_epoch),
    Item("first-ratios", "old log-probabilities are the training path's", placement.first_ratios),
    Item("rollouts", "overlap: rollouts as in a serial run", overlap.same_rollouts),
    Item("losses", "overlap: losses as in a serial run of the same lag", overlap.same_losses),
    Item("torn-slots", "overlap: no torn slot", overlap.no_torn_slot),
    Item("exceptions", "overlap: an exception loses nothing", overlap.exceptions),
    Item("resume", "overlap: a run goes on exactly", overlap.resume),
    Item("overlap", "overlap: both halves at once", overlap.real),
    Item("speeds", "speeds of Breakout, beside what a chip's figures predict", speeds.speeds),
    Item("precisions", "every precision trains", precisions.trains),
    Item("overflow", "an overflow is skipped", precisions.skips),
    Item("not-finite", "ten skipped steps in a row stop the run", precisions.stops),
    Item("memory", "memory stays", upkeep.memory),
    Item("profile", "the profile adds up", upkeep.profile),
    Item("profile-cost", "the profile costs little", upkeep.profile_cost),
    Item("trace", "a timeline is written", upkeep.trace),
    Item("capture", "a GPU capture is written", upkeep.capture),
    Item("files", "checkpoint, export, import: one policy", upkeep.files),
    Item("learns", "a minute of Breakout learns", upkeep.learns),
)


def judge(item: Item, effort: Effort) -> Verdict:
    """Run an item; never raises but for what ends the process."""
    try:
        return Verdict(PASS, item.check(effort))
    except Skipped as reason:
        return Verdict(SKIP, str(reason))
    except Failed as reason:
        return Verdict(FAIL, str(reason))
    except UserError as error:
        return Verdict(FAIL, str(error), traceback.format_exc())
    except Exception as error:
        return Verdict(FAIL, f"{type(error).__name__}: {error}", traceback.format_exc())
