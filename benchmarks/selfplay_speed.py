#!/usr/bin/env python
"""Measure the cost of opponents: python benchmarks/selfplay_speed.py [ENV] [options] [--help].

Two trainers of one process take turns, epoch by epoch: one with self-play, one without. Of N agents
the second learns from all, the first from those of its L that are the learner's. Told is

    wall, cpu         seconds of an epoch with opponents, divided by those of one without; of the
                      clock, and of all threads together, which other programs disturb less
    per learned step  the same times N / L: what a step of the learner's costs more
    least             N / L alone, if acting for opponents and everything else were free

medians over pairs of epochs, with the quartiles. Options behind the environment are those of train,
for both; opponents have a quarter of the environments in all, which --part changes.
"""

# ruff: noqa: I001
import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads

from puffer_mlx import vec
from puffer_mlx.config import Config, load
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text
from puffer_mlx.training.trainer import Trainer

NETWORKS = "MinGRU", "LSTM"
BANKS = 1, 4


def settings(name: str, options: list[str], network: str, banks: int, part: float) -> Config:
    """A configuration; without banks one without self-play."""
    words = [*options, "--torch.network", network, "--train.total-timesteps", "1000000000000"]
    if banks:
        share = part / 2 / banks  # of the agents: half of those of its environments
        words += ["--selfplay.enabled", "1", "--selfplay.rules", "puffer4"]
        words += ["--vec.num-frozen-banks", str(banks), "--vec.frozen-bank-pct", str(share)]
    return load(name, words)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the clock and of all threads together."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def quartiles(values: list[float]) -> list[float]:
    """The median, the lower quartile and the upper one."""
    low, middle, high = statistics.quantiles(values, n=4)
    return [round(number, 4) for number in (middle, low, high)]


def compare(args: argparse.Namespace, options: list[str], network: str, banks: int) -> dict:
    """One pair of runs, epoch by epoch in turns."""
    threads = os.cpu_count() or 1
    with ExitStack() as opened:

        def trainer(banks: int) -> Trainer:
            config = settings(args.env, options, network, banks, args.part)
            environments = opened.enter_context(vec.make(config, threads))
            made = Trainer(config, environments)
            for _ in range(args.warm_up):
                made.step()
            return made

        alone, opposed = trainer(0), trainer(banks)
        assert opposed.self_play is not None
        assignment = opposed.self_play.assignment
        pairs = []
        for turn in range(args.pairs):
            order = (alone, opposed) if turn % 2 else (opposed, alone)
            took = {each: timed(each.step) for each in order}
            pairs.append((took[opposed], took[alone]))
    least = len(assignment.policy) / len(assignment.learners)
    wall, cpu = ([mine[i] / theirs[i] for mine, theirs in pairs] for i in (0, 1))
    return {
        "network": network,
        "opponents": banks,
        "agents": [len(assignment.policy), len(assignment.learners)],
        "seconds": round(statistics.median(theirs[0] for _, theirs in pairs), 4),
        "wall": quartiles(wall),
        "cpu": quartiles(cpu),
        "per learned step": quartiles([least * ratio for ratio in cpu]),
        "least": round(least, 4),
    }


def main() -> None:
    """Compare each network and number of opponents."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("env", nargs="?", default="connect4_two")
    parser.add_argument("--pairs", type=int, default=40, help="of epochs (40)")
    parser.add_argument("--warm-up", type=int, default=5, help="epochs before (5)")
    parser.add_argument("--part", type=float, default=0.25, help="of the environments (0.25)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write what was found to a file")
    args, options = parser.parse_known_args()
    found = {"versions": version_text(), "cores": os.cpu_count(), "compared": []}
    for network in NETWORKS:
        for banks in BANKS:
            one = compare(args, options, network, banks)
            one["load"] = round(os.getloadavg()[0], 1)
            found["compared"].append(one)
            print(json.dumps(one), flush=True)
    if args.json:
        write_json(found, args.json)


if __name__ == "__main__":
    main()
