#!/usr/bin/env python
"""Compare an epoch's cost on a GPU with its minimum: python benchmarks/gpu_costs.py ENV [options].

The minimum follows from shapes: FLOPs of the products, and bytes read and written if activations
stay on the chip. It assumes a linear encoder, MinGRU layers and a linear decoder. With `--count`,
NVIDIA's `ncu` measures one epoch of `train.py` by kernel: launches, time, bytes of GPU memory, and
instructions of tensor cores.
"""

import argparse
import collections
import csv
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from puffer_mlx import vec
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.config import Config, parse_command_line
from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.json_text import write_json

TRAIN = Path(__file__).parents[1] / "scripts" / "train.py"
EPOCHS = 12  # of a run under ncu; only the tenth is counted
ROLLOUTS = "rollout_", "rows_"  # kernels of entire rollouts, with which epochs begin
STEP = "step_"  # kernels of one step of the environments, if a rollout has a launch per step
METRICS = {
    "gpu__time_duration.sum": "us",
    "dram__bytes_read.sum": "read",
    "dram__bytes_write.sum": "written",
    "sm__inst_executed_pipe_tensor.sum": "tensor",
}
UNITS = {"ns": 1e-3, "us": 1, "ms": 1e3, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
MAX_LISTED_KERNELS = 14


class MinimumCost(NamedTuple):
    """Minimum FLOPs, and minimum bytes read and written, of an epoch: rollout and training."""

    rollout_flops: int
    training_flops: int
    rollout_bytes: int
    training_bytes: int


def minimum_cost(config: Config, spec: EnvSpec) -> MinimumCost:
    """Return the minimum FLOPs and bytes of an epoch, which follow from shapes.

    A sample takes 2 FLOPs per weight forward, 2 for the gradient of the weight, and 2 for the
    gradient of the input, except in the encoder. A rollout writes observations,
    actions, log-probabilities, values, rewards and terminals, and reads noise; training reads them
    for each sample, and writes three numbers.
    """
    H, L, D, A = (
        *(config.policy.hidden_size, config.policy.num_layers),
        *(spec.observation_size, spec.action.logits),
    )
    later_weights, heads = L * 3 * H * H + (A + 1) * H, spec.action.heads
    weights, steps = D * H + later_weights, config.batch_size
    samples = config.minibatches * config.segments * config.train.horizon
    observation = D * spec.observation_dtype.itemsize
    return MinimumCost(
        2 * weights * steps,
        2 * (2 * weights + later_weights) * samples,
        (observation + 4 * (2 * heads + 4)) * steps,
        (observation + 4 * (heads + 4 + 3)) * samples,
    )


def epoch_of(path: Path, horizon: int) -> dict[str, dict[str, float]]:
    """Return each kernel's launches and sums of metrics in one epoch, from ncu's output.

    Args:
        path: CSV file of ncu.
        horizon: Steps per rollout.

    Raises:
        UserError: If the GPU didn't collect the rollouts.
    """
    with path.open() as file:
        rows = [row for row in csv.reader(file) if row and not row[0].startswith("==")]
    names = {name: k for k, name in enumerate(rows[0])} if rows else {}
    launches: dict[str, dict[str, Any]] = {}
    for row in rows[1:]:
        launch = launches.setdefault(row[names["ID"]], {"name": row[names["Kernel Name"]]})
        metric = METRICS[row[names["Metric Name"]]]
        unit = row[names["Metric Unit"]]
        scale = UNITS.get(unit, 1)
        launch[metric] = float(row[names["Metric Value"]].replace(",", "")) * scale
    order = [*launches.values()]

    def launched(kind: str | tuple[str, ...]) -> list[int]:
        return [k for k, launch in enumerate(order) if launch["name"].startswith(kind)]

    begins = launched(ROLLOUTS) or launched(STEP)[::horizon]
    if len(begins) < EPOCHS - 1:
        raise UserError(
            f"ncu found {len(begins)} of {EPOCHS} rollouts on the GPU",
            "needs an environment whose rules compile for a GPU, and permission to read counters",
        )
    sums: dict[str, dict[str, float]] = {}
    for launch in order[begins[EPOCHS - 3] : begins[EPOCHS - 2]]:
        name = launch["name"].partition("(")[0].removeprefix("void ")
        total = sums.setdefault(name, collections.defaultdict(float))
        total["launches"] += 1
        for metric in METRICS.values():
            total[metric] += launch.get(metric, 0.0)
    return sums


def count(arguments: list[str], config: Config) -> dict[str, dict[str, float]]:
    """Run ``train.py`` under NVIDIA's profiler ncu. Returns the counts of one epoch by kernel.

    A first run compiles the kernels.
    """
    more = ["--train.rollout-device", "gpu-kernel", "--train.overlap", "0"]
    steps = config.batch_size
    with tempfile.TemporaryDirectory() as folder:
        more += ["--base.checkpoint-dir", folder, "--base.log-dir", folder]
        train = [sys.executable, str(TRAIN), *arguments, *more, "--train.total-timesteps"]
        file = Path(folder) / "ncu.csv"
        profiler = ["ncu", "--clock-control", "none", "--cache-control", "none", "--csv"]
        profiler += ["--metrics", ",".join(METRICS), "--log-file", str(file)]
        for command in ([*train, str(steps)], [*profiler, *train, str(EPOCHS * steps)]):
            process = subprocess.run(command, capture_output=True, text=True)
            if process.returncode:
                raise UserError(f"{command[0]} failed: {process.stderr[-400:]}", "see its message")
        return epoch_of(file, config.train.horizon)


def table(sums: dict[str, dict[str, float]]) -> str:
    """Return a table of the GPU kernels that take longest, and of the sum of all kernels."""
    lines = [f"{'kernel':48} launches       us  read MB  written MB  tensor 1000"]
    order = sorted(sums, key=lambda name: -sums[name]["us"])
    total = {key: sum(each[key] for each in sums.values()) for key in next(iter(sums.values()))}
    rows = [(name, sums[name]) for name in order[:MAX_LISTED_KERNELS]]
    for name, each in [*rows, ("all", total)]:
        lines.append(
            f"{name[:48]:48} {each['launches']:8.0f} {each['us']:8.0f} {each['read'] / 1e6:8.1f}"
            f" {each['written'] / 1e6:11.1f} {each['tensor'] / 1e3:12.1f}"
        )
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("this benchmark")
    group.add_argument("--count", action="store_true", help="measure on a GPU with NVIDIA's ncu")
    group.add_argument("--json", metavar="FILE", type=Path, help="write the record to a file")


@with_exit_code
def main(argv: list[str]) -> None:
    config, options = parse_command_line(argv, add_options)
    with vec.make(config, 1) as environments:
        minimum = minimum_cost(config, environments.spec)
    rollout, training = minimum.rollout_flops / 1e9, minimum.training_flops / 1e9
    moved = (minimum.rollout_bytes + minimum.training_bytes) / 1e9
    print(
        f"an epoch computes {rollout + training:.1f} GFLOP (rollout {rollout:.1f}, training"
        f" {training:.1f}) and moves {moved:.2f} GB at least"
    )
    record: dict[str, Any] = {"command": argv, "necessary": minimum._asdict()}
    if options.count:
        local_options = {"--count", "--json", str(options.json)}
        arguments = [word for word in argv if word not in local_options]
        record["epoch"] = sums = count(arguments, config)
        print(table(sums))
    if options.json:
        write_json(record, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
