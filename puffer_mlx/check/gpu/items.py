"""List the checks of the machine in the order in which they run, the small and basic ones first."""

import os
from functools import partial

import mlx.core as mx
import psutil

from puffer_mlx.check.gpu import kernels, runs
from puffer_mlx.check.items import Item
from puffer_mlx.ops.cpu_extension import count_cores
from puffer_mlx.ppo.precision import DTYPES
from puffer_mlx.system.version import version_text


def machine(quick: bool) -> str:
    """Return the facts about the machine that a report needs. Always passes."""
    lines = dict(line.split(maxsplit=1) for line in version_text().splitlines())
    memory = psutil.virtual_memory().total / 2**30
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    facts = f"{count_cores()} cores, {memory:.0f} GiB, load {load:.1f}"
    return f"{lines['device']}; {lines['platform']}; {facts}; MLX {lines['MLX']}"


ITEMS = (
    Item("machine", machine, "machine and versions"),
    *(
        Item(
            f"kernels-{device}-{precision}",
            partial(kernels.fused, getattr(mx, device), precision),
            f"fused operations of the {device.upper()} in {precision} against plain MLX",
        )
        for device in ("cpu", "gpu")
        for precision in DTYPES
    ),
    Item("minibatch", kernels.minibatch, "a minibatch's gradients, against float32 on the CPU"),
    Item("one-launch", runs.one_launch, "rollouts and environments in one launch or few a step"),
    Item("first-ratios", runs.first_ratios, "old log-probabilities are the training path's"),
    Item("same-epoch", runs.same_epoch, "an epoch on the GPU as on the CPU"),
    Item("resume", runs.resume, "a run goes on exactly"),
    Item("learns", runs.learns, "a minute of Breakout learns"),
    Item("speeds", runs.speeds, "speeds of Breakout"),
)
