#!/usr/bin/env python
"""Compare steps per second of several ranks with one, with equal numbers of agents per rank.

    python benchmarks/data_parallel.py                              # this CPU, by ring
    python benchmarks/data_parallel.py --backend nccl --agents 8192 --minibatch 65536   # GPUs

Each number is the best of several runs of ``puffer-mlx train`` in separate folders: the median of
the epochs without the first ones. ``--phases`` prints the phases of the first rank's epochs. Needs
only this repository and MLX. Words after ``--`` are options of every run.
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
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _paths))  # runs are to find it, too

WARM = 3  # epochs that aren't counted


def words(options: argparse.Namespace, ranks: int) -> list[str]:
    """The command of a run."""
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
    """The records of a run's epochs, but for the first ones."""
    with tempfile.TemporaryDirectory() as folder:
        where = ["--checkpoint-dir", f"{folder}/checkpoints", "--log-dir", f"{folder}/logs"]
        command = [*words(options, ranks), *where]
        if ranks == 1:
            code = subprocess.run(command).returncode
        else:
            code = launching.launch_ranks(ranks, command, on_gpus=options.backend == "nccl")
        if code:
            raise SystemExit(f"{ranks} ranks ended with {code}")
        records = log_of(Path(folder))
    return [record for record in records if "SPS" in record][WARM:]


def median(records: list[dict], name: str) -> float:
    """Return the median of a number in records, 0 for records without it."""
    return statistics.median(record.get(name, 0.0) for record in records)


def phases(found: dict[int, list[dict]]) -> str:
    """A table of milliseconds: a row for each ``perf/*``, a column for each number of ranks."""
    every = [record for records in found.values() for record in records]
    names = dict.fromkeys(name for record in every for name in record if name.startswith("perf/"))
    lines = [f"{'ms an epoch':26}" + "".join(f"{ranks:>8}" for ranks in found)]
    for name in names:
        row = [1e3 * median(records, name) for records in found.values()]
        if max(row) >= 0.005:
            lines.append(f"{name:26}" + "".join(f"{number:8.2f}" for number in row))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore
    parser.add_argument("env", nargs="?", default="breakout")
    parser.add_argument("--backend", choices=("ring", "nccl"), default="ring")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--agents", type=int, default=1024, help="of each rank")
    parser.add_argument("--minibatch", type=int, default=8192, help="steps of each rank")
    parser.add_argument("--horizon", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--phases", action="store_true", help="print perf/*, medians of epochs")
    parser.add_argument("--json", type=Path, help="write the numbers there, too")
    argv, _, more = " ".join(sys.argv[1:]).partition(" -- ")
    options = parser.parse_args(argv.split())
    options.more = more.split()
    found: dict[int, list[float]] = {}
    told: dict[int, list[dict]] = {}
    for _ in range(options.runs):  # in turns: a machine's speed changes
        for ranks in options.ranks:
            records = epochs(options, ranks)
            found.setdefault(ranks, []).append(median(records, "SPS"))
            told.setdefault(ranks, []).extend(records)
    first = max(found[options.ranks[0]])
    print(f"{options.env}, {options.agents} agents a rank, {options.backend}")
    for ranks, speeds in found.items():
        runs = ", ".join(f"{speed:,.0f}" for speed in speeds)
        print(
            f"{ranks} ranks: {max(speeds):,.0f} steps/s, ratio {max(speeds) / first:.2f} ({runs})"
        )
    if options.phases:
        print(phases(told))
    if options.json:
        options.json.write_text(json.dumps({"options": vars(options) | {"json": ""}, "SPS": found}))


if __name__ == "__main__":
    main()
