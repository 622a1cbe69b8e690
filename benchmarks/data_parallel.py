#!/usr/bin/env python
"""Compare the steps per second of several ranks and of one, with equally many agents per rank.

    python benchmarks/data_parallel.py                              # this CPU, by ring
    python benchmarks/data_parallel.py --backend nccl --agents 8192 --minibatch 65536   # GPUs

Each speed is the best of several runs of ``puffer-mlx train``; a run's speed is the median over its
epochs, without the first ones. ``--phases`` prints the phases of the first rank's epochs. Needs
only this repository and MLX. Options after ``--`` are passed to every run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from learning_processes import log_of

from puffer_mlx.distributed import launching
from puffer_mlx.system import program

_paths = sys.path[0], os.environ.get("PYTHONPATH")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _paths))  # so that runs find the package

WARM_UP_EPOCHS = 3  # not counted


def train_command(options: argparse.Namespace, ranks: int) -> list[str]:
    """Return the command line that trains with this number of ranks (processes)."""
    agents = options.agents * ranks
    device = "cpu" if options.backend == "ring" else "gpu"
    return program.package_command(
        *("train", options.env, "-q", "--device", device),
        *("--vec.total-agents", str(agents), "--train.horizon", str(options.horizon)),
        *("--train.minibatch-size", str(options.minibatch * ranks)),
        *("--train.total-timesteps", str(options.epochs * agents * options.horizon)),
        *("--checkpoint-interval", "0"),
        *options.more,
    )


def epochs(options: argparse.Namespace, ranks: int) -> list[dict]:
    """Train with this number of ranks. Returns the log records of the epochs after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        folders = ["--checkpoint-dir", f"{folder}/checkpoints", "--log-dir", f"{folder}/logs"]
        command = [*train_command(options, ranks), *folders]
        if ranks == 1:
            code = subprocess.run(command).returncode
        else:
            code = launching.launch_ranks(ranks, command, on_gpus=options.backend == "nccl")
        if code:
            raise SystemExit(f"{ranks} ranks ended with {code}")
        records = log_of(Path(folder))
    return [record for record in records if "SPS" in record][WARM_UP_EPOCHS:]


def median(records: list[dict], name: str) -> float:
    """Return the median of one value over log records. A missing value counts as 0."""
    return statistics.median(record.get(name, 0.0) for record in records)


def phases(records_by_ranks: dict[int, list[dict]]) -> str:
    """Return a table of milliseconds: a row per phase, a column per number of ranks."""
    every = [record for records in records_by_ranks.values() for record in records]
    names = dict.fromkeys(name for record in every for name in record if name.startswith("perf/"))
    lines = [f"{'ms an epoch':26}" + "".join(f"{ranks:>8}" for ranks in records_by_ranks)]
    for name in names:
        row = [1e3 * median(records, name) for records in records_by_ranks.values()]
        if max(row) >= 0.005:
            lines.append(f"{name:26}" + "".join(f"{number:8.2f}" for number in row))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore
    parser.add_argument("env", nargs="?", default="breakout")
    parser.add_argument("--backend", choices=("ring", "nccl"), default="ring")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--agents", type=int, default=1024, help="agents per rank")
    parser.add_argument("--minibatch", type=int, default=8192, help="steps per rank")
    parser.add_argument("--horizon", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--phases", action="store_true", help="print perf/*, medians of epochs")
    parser.add_argument("--json", type=Path, help="write the record to a file")
    argv, _, extra = " ".join(sys.argv[1:]).partition(" -- ")
    options = parser.parse_args(argv.split())
    options.extra = extra.split()
    speeds: dict[int, list[float]] = {}
    records_by_ranks: dict[int, list[dict]] = {}
    for _ in range(options.runs):  # alternating, because a machine's speed changes
        for ranks in options.ranks:
            records = epochs(options, ranks)
            speeds.setdefault(ranks, []).append(median(records, "SPS"))
            records_by_ranks.setdefault(ranks, []).extend(records)
    reference_speed = max(speeds[options.ranks[0]])
    print(f"{options.env}, {options.agents} agents a rank, {options.backend}")
    for ranks, rank_speeds in speeds.items():
        runs = ", ".join(f"{speed:,.0f}" for speed in rank_speeds)
        best = max(rank_speeds)
        print(f"{ranks} ranks: {best:,.0f} steps/s, ratio {best / reference_speed:.2f} ({runs})")
    if options.phases:
        print(phases(records_by_ranks))
    if options.json:
        options.json.write_text(
            json.dumps({"options": vars(options) | {"json": ""}, "SPS": speeds})
        )


if __name__ == "__main__":
    main()
