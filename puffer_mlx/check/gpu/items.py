"""List the items in the order in which they run, the small and basic ones first."""

import os
import traceback
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import mlx.core as mx
import psutil

from puffer_mlx.check.gpu import kernels, runs
from puffer_mlx.check.gpu.tools import Failed, Skipped
from puffer_mlx.errors import UserError
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.ppo.precision import DTYPES
from puffer_mlx.system.version import version_text

PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"


class Item(NamedTuple):
    """One check of the machine.

    Args:
        name: Short name without spaces.
        title: Property that holds if the item passes.
        check: Maps ``quick`` to the measured result. Raises Skipped or Failed, or the
            exception of the code under test.
    """

    name: str
    title: str
    check: Callable[[bool], str]


class Verdict(NamedTuple):
    """Verdict of an item. ``text`` is the measured result or the reason."""

    verdict: str
    text: str
    details: str = ""  # traceback of an unexpected exception


def machine(quick: bool) -> str:
    """Return the facts about the machine that a report needs. Always passes."""
    lines = dict(line.split(maxsplit=1) for line in version_text().splitlines())
    memory = psutil.virtual_memory().total / 2**30
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    facts = f"{threads()} cores, {memory:.0f} GiB, load {load:.1f}"
    return f"{lines['device']}; {lines['platform']}; {facts}; MLX {lines['MLX']}"


ITEMS = (
    Item("machine", "machine and versions", machine),
    *(
        Item(
            f"kernels-{device}-{precision}",
            f"fused operations of the {device.upper()} in {precision} against plain MLX",
            partial(kernels.fused, getattr(mx, device), precision),
        )
        for device in ("cpu", "gpu")
        for precision in DTYPES
    ),
    Item("minibatch", "a minibatch's gradients, against float32 on the CPU", kernels.minibatch),
    Item("one-launch", "rollouts and environments in one launch or few a step", runs.one_launch),
    Item("first-ratios", "old log-probabilities are the training path's", runs.first_ratios),
    Item("same-epoch", "an epoch on the GPU as on the CPU", runs.same_epoch),
    Item("resume", "a run goes on exactly", runs.resume),
    Item("learns", "a minute of Breakout learns", runs.learns),
    Item("speeds", "speeds of Breakout, beside what a chip's figures predict", runs.speeds),
)


def judge(item: Item, quick: bool) -> Verdict:
    """Run an item and turn every Exception into a verdict."""
    try:
        return Verdict(PASS, item.check(quick))
    except Skipped as reason:
        return Verdict(SKIP, str(reason))
    except Failed as reason:
        return Verdict(FAIL, str(reason))
    except UserError as error:
        return Verdict(FAIL, str(error), traceback.format_exc())
    except Exception as error:
        return Verdict(FAIL, f"{type(error).__name__}: {error}", traceback.format_exc())
