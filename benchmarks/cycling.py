#!/usr/bin/env python
"""Measure if self-play converges or cycles: python benchmarks/cycling.py [--json FILE] [--help].

Trains rock_paper_scissors with its shipped settings, with the same number of steps against each
kind of opponent:

    alone     the policy plays only against itself
    puffer5   half of the environments play a pool of earlier weights, with PufferLib 5.0's rules
    puffer4   the same with PufferLib 4.0's rules

A policy without memory chooses one of three actions after each of 820 histories, so its behaviour
and its value are computed exactly (rounds_of_rps.py). After every tenth of a run the table has
these measures, in points per episode of four rounds, averaged over the seeds:

    policy    points of the best response to the current policy (0: nothing beats it)
    mixture   points of the best response to a random choice among all policies of the run so far
    past      most points that one earlier policy of the run gets against the current one
    lost to   fraction of earlier policies that get more than 0.1 points

Uniform random play has 0.67; always the same choice 2 (rock, paper) or 4 (scissors). Further
options are passed to `puffer-mlx train`. Runs that are in FILE are skipped; --again repeats them.
"""
# ruff: noqa: I001

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
import numpy as np

from puffer_mlx import config, vec
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.errors import UserError
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text
from puffer_mlx.training.placement import rollout_cores
from puffer_mlx.training.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parent))
from rounds_of_rps import Behaviour, behaviour, exploitability, payoffs

PUFFER4_OPTIONS = (
    "--selfplay.rules puffer4 --vec.num-frozen-banks 8 --vec.frozen-bank-pct 0.03125"
    " --selfplay.snapshot-interval 327_680"
)
GAME = "rock_paper_scissors"
POOL = f"{GAME}-selfplay"  # configs/NAME.ini
OPPONENTS = {"alone": [GAME], "puffer5": [POOL], "puffer4": [POOL, *PUFFER4_OPTIONS.split()]}
MEASURES = "policy", "mixture", "past", "lost to"
MEASUREMENTS = 20  # per run
PAST_POLICIES = 100  # approximate number of stored policies per run
WIN_THRESHOLD = 0.1  # points per episode: a policy that gets more has won

Curve = dict[str, list[float]]


def measured(policy: Behaviour, past: list[Behaviour]) -> dict[str, float]:
    """Return measures of a self-play policy by name, such as how easily it is beaten.

    Args:
        policy: Current policy, the last one of ``past``.
        past: All policies of the run so far.
    """
    got = -payoffs(policy, past)
    return {
        "policy": exploitability([policy]),
        "mixture": exploitability(past),
        "past": float(got.max()),
        "lost to": float((got > WIN_THRESHOLD).mean()),
    }


def train_and_measure(opponents: str, seed: int, arguments: list[str]) -> Curve:
    """Train a policy against a kind of opponent, and measure the policy at regular intervals.

    Returns lists of measures by name.
    """
    seed_options = [
        "--seed",
        str(seed),
        "--vec.seed",
        str(1000 * seed),
        "--selfplay.seed",
        str(seed),
    ]
    name, *extra_options = OPPONENTS[opponents]
    settings = config.load(name, [*extra_options, *seed_options, "--profile", "0", *arguments])
    select_device(settings.base.device)
    rounds = int(settings.env["rounds"])
    epochs = settings.epochs
    store_interval = max(1, epochs // PAST_POLICIES)
    measure_interval = max(1, epochs // MEASUREMENTS)
    curve: Curve = {name: [] for name in ("steps", *MEASURES)}
    threads = rollout_threads(settings, rollout_cores(settings))
    with vec.make(settings, threads=threads) as environments:
        trainer = Trainer(settings, environments)
        past: list[Behaviour] = []
        for epoch, _ in enumerate(trainer, 1):
            if epoch % store_interval == 0:
                past.append(behaviour(trainer.policy, trainer.weights, rounds))
            if epoch % measure_interval == 0 and past:
                policy = behaviour(trainer.policy, trainer.weights, rounds)
                values = {"steps": trainer.global_step, **measured(policy, past)}
                for name, value in values.items():
                    curve[name].append(round(value, 4))
    return curve


def table(runs: dict[str, dict[str, Curve]]) -> str:
    """Return a Markdown table of policies' measures, with a column for each kind of opponent."""
    lines = ["| steps | " + " | ".join(f"{f}: {', '.join(MEASURES)}" for f in runs) + " |"]
    lines.append("| --- " * (1 + len(runs)) + "|")
    steps = next(iter(next(iter(runs.values())).values()))["steps"]
    for i in range(1, len(steps), 2):
        cells = []
        for seeds in runs.values():
            means = [statistics.mean(c[name][i] for c in seeds.values()) for name in MEASURES]
            cells.append(", ".join(f"{mean:.2f}" for mean in means))
        lines.append(f"| {steps[i] / 1e6:.0f} M | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ends(runs: dict[str, dict[str, Curve]]) -> str:
    """Return text with each measure of the policies, averaged over the last quarter of each run."""
    lines = ["", "Means over the last quarter of each run, by seed:"]
    for opponents, seeds in runs.items():
        for name in MEASURES:
            values = [np.mean(curve[name][-len(curve[name]) // 4 :]) for curve in seeds.values()]
            lines.append(
                f"  {opponents:8} {name:8} " + "  ".join(f"{value:5.2f}" for value in values)
            )
    return "\n".join(lines)


@with_exit_code
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--forms", default=",".join(OPPONENTS), help=f"opponents: {', '.join(OPPONENTS)}"
    )
    parser.add_argument("--seeds", default="1,2,3,4,5", help="seeds of the runs (1,2,3,4,5)")
    parser.add_argument("--json", type=Path, help="record to read and extend")
    parser.add_argument("--again", action="store_true", help="repeat runs of the record")
    options, arguments = parser.parse_known_args(argv)
    record: dict[str, Any] = {"version": version_text(), "options": arguments, "runs": {}}
    if options.json and options.json.exists():
        record = json.loads(options.json.read_text())
        if record["options"] != arguments:
            raise UserError(
                f"{options.json} has other options: {' '.join(record['options']) or 'none'}",
                "use another file, or the same options",
            )
    for opponents in options.forms.split(","):
        own_runs = record["runs"].setdefault(opponents, {})
        for seed in options.seeds.split(","):
            if seed in own_runs and not options.again:
                continue
            began = time.perf_counter()
            own_runs[seed] = train_and_measure(opponents, int(seed), arguments)
            last = ", ".join(f"{name} {own_runs[seed][name][-1]:.2f}" for name in MEASURES)
            print(
                f"{opponents}, seed {seed}: {last}; {time.perf_counter() - began:.0f} s", flush=True
            )
            if options.json:
                write_json(record, options.json, indent=None)
    print(table(record["runs"]))
    print(ends(record["runs"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
