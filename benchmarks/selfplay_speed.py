#!/usr/bin/env python
"""Measure the cost of opponents: python benchmarks/selfplay_speed.py [ENV] [options] [--help].

Two trainers in one process alternate epoch by epoch: one with self-play, one without. The trainer
without self-play learns from all N agents, the other one from the L agents of the learner. The
results, medians over pairs of epochs with their quartiles:

    wall              an epoch's seconds by the clock: with opponents divided by without
    cpu               the same for the CPU-seconds of all threads, which other programs disturb less
    per learned step  cpu times N / L: the cost of one step from which the learner learns
    least             N / L: `per learned step` if epochs took as long with as without opponents

Further options are passed to both trainers. Opponents play in a fraction of the environments, by
default a quarter (--part).
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


def settings(name: str, options: list[str], network: str, banks: int, fraction: float) -> Config:
    """Return a trainer's configuration with this number of opponents; 0 for no self-play."""
    arguments = [*options, "--torch.network", network, "--train.total-timesteps", "1000000000000"]
    if banks:
        # An opponent plays half of the agents of its environments.
        agent_fraction = fraction / 2 / banks
        arguments += ["--selfplay.enabled", "1", "--selfplay.rules", "puffer4"]
        arguments += [
            "--vec.num-frozen-banks",
            str(banks),
            "--vec.frozen-bank-pct",
            str(agent_fraction),
        ]
    return load(name, arguments)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Run a function. Returns its seconds by the clock, and of all threads together."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def median_and_quartiles(values: list[float]) -> list[float]:
    """Return the median, the lower quartile and the upper quartile of values, rounded."""
    low, middle, high = statistics.quantiles(values, n=4)
    return [round(number, 4) for number in (middle, low, high)]


def compare(args: argparse.Namespace, options: list[str], network: str, banks: int) -> dict:
    """Train with and without self-play opponents, alternating.

    Returns the ratios of their costs.
    """
    threads = os.cpu_count() or 1
    with ExitStack() as opened:

        def make_trainer(opponents: int) -> Trainer:
            config = settings(args.env, options, network, opponents, args.part)
            environments = opened.enter_context(vec.make(config, threads))
            new_trainer = Trainer(config, environments)
            for _ in range(args.warm_up):
                new_trainer.step()
            return new_trainer

        alone, opposed = make_trainer(0), make_trainer(banks)
        assert opposed.self_play is not None
        assignment = opposed.self_play.assignment
        pairs = []  # times of the opposed trainer, times of the one alone
        for pair in range(args.pairs):
            order = (alone, opposed) if pair % 2 else (opposed, alone)
            times = {trainer: timed(trainer.step) for trainer in order}
            pairs.append((times[opposed], times[alone]))
    agents, learning_agents = len(assignment.policy), len(assignment.learners)
    least = agents / learning_agents
    wall = [opposed_times[0] / alone_times[0] for opposed_times, alone_times in pairs]
    cpu = [opposed_times[1] / alone_times[1] for opposed_times, alone_times in pairs]
    return {
        "network": network,
        "opponents": banks,
        "agents": [agents, learning_agents],
        "seconds": round(statistics.median(alone_times[0] for _, alone_times in pairs), 4),
        "wall": median_and_quartiles(wall),
        "cpu": median_and_quartiles(cpu),
        "per learned step": median_and_quartiles([least * ratio for ratio in cpu]),
        "least": round(least, 4),
    }


def main() -> None:
    """Measure the cost of self-play opponents for each network and number of opponents."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("env", nargs="?", default="connect4_two")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of epochs (40)")
    parser.add_argument("--warm-up", type=int, default=5, help="epochs before the measurement (5)")
    parser.add_argument(
        "--part", type=float, default=0.25, help="fraction of environments with opponents (0.25)"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the record to a file")
    args, options = parser.parse_known_args()
    record = {"versions": version_text(), "cores": os.cpu_count(), "compared": []}
    for network in NETWORKS:
        for banks in BANKS:
            result = compare(args, options, network, banks)
            result["load"] = round(os.getloadavg()[0], 1)
            record["compared"].append(result)
            print(json.dumps(result), flush=True)
    if args.json:
        write_json(record, args.json)


if __name__ == "__main__":
    main()
