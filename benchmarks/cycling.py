#!/usr/bin/env python
"""Measure if self-play converges or cycles: python benchmarks/cycling.py [--json FILE] [--help].

Trains rock_paper_scissors by the settings of its files, as many steps in each form:

    alone     the policy plays only against itself
    puffer5   in half of the environments against a pool of its earlier weights, by 5.0's rules
    puffer4   the same by 4.0's

A policy without memory chooses one of three actions after each of 820 pasts, so its behaviour and
its value are computed exactly (rounds_of_rps.py). After every tenth of a run the table has, in
points of an episode of four rounds, each the mean over the seeds:

    policy    what the best answer gets against the policy as it is (0: nothing beats it)
    mixture   the same against a uniform draw from the policies of the run so far: the pool
    past      the most that one of the policies of the run so far gets against it
    lost to   the part of them that get more than 0.1

Uniform random play has 0.67; always the same choice 2 (rock, paper) or 4 (scissors). Further words
are options of `puffer-mlx train`. Runs that FILE has are left out; --again makes them anew.
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

BY_4 = (
    "--selfplay.rules puffer4 --vec.num-frozen-banks 8 --vec.frozen-bank-pct 0.03125"
    " --selfplay.snapshot-interval 327_680"
)
GAME = "rock_paper_scissors"
POOL = f"{GAME}-selfplay"  # configs/NAME.ini
FORMS = {"alone": [GAME], "puffer5": [POOL], "puffer4": [POOL, *BY_4.split()]}
MEASURES = "policy", "mixture", "past", "lost to"
PARTS = 20  # of a run, after which it is measured
KEPT = 100  # approximate number of a run's policies in its past
BEATEN = 0.1  # points of an episode: who gets more has won

Curve = dict[str, list[float]]


def measured(now: Behaviour, past: list[Behaviour]) -> dict[str, float]:
    """Return the measures of a policy, the last one of ``past``."""
    got = -payoffs(now, past)
    return {
        "policy": exploitability([now]),
        "mixture": exploitability(past),
        "past": float(got.max()),
        "lost to": float((got > BEATEN).mean()),
    }


def trained(form: str, seed: int, words: list[str]) -> Curve:
    """A run, measured after each part of it."""
    own = ["--seed", str(seed), "--vec.seed", str(1000 * seed), "--selfplay.seed", str(seed)]
    name, *chosen = FORMS[form]
    settings = config.load(name, [*chosen, *own, "--profile", "0", *words])
    select_device(settings.base.device)
    rounds = int(settings.env["rounds"])
    epochs = settings.epochs
    every, each = max(1, epochs // KEPT), max(1, epochs // PARTS)
    curve: Curve = {name: [] for name in ("steps", *MEASURES)}
    threads = rollout_threads(settings, rollout_cores(settings))
    with vec.make(settings, threads=threads) as environments:
        trainer = Trainer(settings, environments)
        past: list[Behaviour] = []
        for epoch, _ in enumerate(trainer, 1):
            if epoch % every == 0:
                past.append(behaviour(trainer.policy, trainer.weights, rounds))
            if epoch % each == 0 and past:
                now = behaviour(trainer.policy, trainer.weights, rounds)
                found = {"steps": trainer.global_step, **measured(now, past)}
                for name, value in found.items():
                    curve[name].append(round(value, 4))
    return curve


def table(runs: dict[str, dict[str, Curve]]) -> str:
    """The forms side by side."""
    lines = ["| steps | " + " | ".join(f"{f}: {', '.join(MEASURES)}" for f in runs) + " |"]
    lines.append("| --- " * (1 + len(runs)) + "|")
    first = next(iter(next(iter(runs.values())).values()))["steps"]
    for i in range(1, len(first), 2):
        cells = []
        for seeds in runs.values():
            means = [statistics.mean(c[name][i] for c in seeds.values()) for name in MEASURES]
            cells.append(", ".join(f"{mean:.2f}" for mean in means))
        lines.append(f"| {first[i] / 1e6:.0f} M | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ends(runs: dict[str, dict[str, Curve]]) -> str:
    """Return the mean over the last quarter of each run."""
    lines = ["", "Means over the last quarter of each run, by seed:"]
    for form, seeds in runs.items():
        for name in MEASURES:
            values = [np.mean(curve[name][-len(curve[name]) // 4 :]) for curve in seeds.values()]
            lines.append(f"  {form:8} {name:8} " + "  ".join(f"{value:5.2f}" for value in values))
    return "\n".join(lines)


@with_exit_code
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--forms", default=",".join(FORMS), help=f"some of {', '.join(FORMS)}")
    parser.add_argument("--seeds", default="1,2,3,4,5", help="of the runs (1,2,3,4,5)")
    parser.add_argument("--json", type=Path, help="the runs are read from here, and kept here")
    parser.add_argument("--again", action="store_true", help="make runs anew that it has")
    options, words = parser.parse_known_args(argv)
    found: dict[str, Any] = {"version": version_text(), "options": words, "runs": {}}
    if options.json and options.json.exists():
        found = json.loads(options.json.read_text())
        if found["options"] != words:
            raise UserError(
                f"{options.json} is of other options: {' '.join(found['options']) or 'none'}",
                "another file, or the same options",
            )
    for form in options.forms.split(","):
        own = found["runs"].setdefault(form, {})
        for seed in options.seeds.split(","):
            if seed in own and not options.again:
                continue
            began = time.perf_counter()
            own[seed] = trained(form, int(seed), words)
            last = ", ".join(f"{name} {own[seed][name][-1]:.2f}" for name in MEASURES)
            print(f"{form}, seed {seed}: {last}; {time.perf_counter() - began:.0f} s", flush=True)
            if options.json:
                write_json(found, options.json, indent=None)
    print(table(found["runs"]))
    print(ends(found["runs"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
