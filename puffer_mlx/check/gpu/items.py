"""List the checks of ``puffer-mlx check-gpu`` in the order in which they run, basic ones first."""

import os
from functools import partial

import mlx.core as mx
import psutil

from puffer_mlx.check.gpu import kernels, runs
from puffer_mlx.check.items import Item
from puffer_mlx.ops.cpu_extension import count_cores
from puffer_mlx.ppo.precision import DTYPES
from puffer_mlx.system.version import version_text


def describe_machine(quick: bool) -> str:
    """Return one line about this machine and its software versions, for a report."""
    lines = dict(line.split(maxsplit=1) for line in version_text().splitlines())
    memory = psutil.virtual_memory().total / 2**30
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    facts = f"{count_cores()} cores, {memory:.0f} GiB, load {load:.1f}"
    return f"{lines['device']}; {lines['platform']}; {facts}; MLX {lines['MLX']}"


ITEMS = (
    Item("machine", describe_machine, "machine and versions"),
    *(
        Item(
            f"kernels-{device}-{precision}",
            partial(kernels.check_fused, getattr(mx, device), precision),
            f"fused operations of the {device.upper()} in {precision} against plain MLX",
        )
        for device in ("cpu", "gpu")
        for precision in DTYPES
    ),
    Item(
        "minibatch", kernels.check_minibatch, "gradients of a minibatch against float32 on the CPU"
    ),
    Item(
        "one-launch",
        runs.check_one_launch,
        "environments and rollouts in one launch, or in a few per step",
    ),
    Item(
        "first-ratios", runs.check_first_ratios, "acting and training give equal log-probabilities"
    ),
    Item("same-epoch", runs.check_same_epoch, "an epoch on the GPU as on the CPU"),
    Item("resume", runs.check_resume, "a resumed run is exact"),
    Item("learns", runs.check_learning, "a minute of Breakout learns"),
    Item("speeds", runs.measure_speeds, "speeds of Breakout"),
)
