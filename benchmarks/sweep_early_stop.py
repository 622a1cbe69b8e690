#!/usr/bin/env python
"""What ending runs early saves: python benchmarks/sweep_early_stop.py [--json FILE] [--help].

Runs of sweep_methods.py's surfaces log their score, with noise, at 40 points of their curves. The
same sweep is made twice: once all runs go on to their ends, once `EarlyStop` watches them, with a
threshold out of the runs before. Of each: the seconds that all runs cost, and the true score of the
run whose noisy score was best at its end. `Random` suggests the same runs both times; `Protein`
learns from the points that a run has come to.
"""

import argparse
import json
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from puffer_mlx.sweep.early_stop import EarlyStop, threshold
from puffer_mlx.sweep.methods import make_method
from puffer_mlx.sweep.observations import Observations
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import COST
from puffer_mlx.system.files import publish
from puffer_mlx.system.version import version_text

sys.path.insert(0, str(Path(__file__).parent))
from sweep_methods import Surface, surfaces

LOGGED = 40  # points of a run
TOLD = 4  # of them its observations


class Sweep(NamedTuple):
    """One sweep: the true score of what seemed best, seconds in all, runs that were ended."""

    best: float
    seconds: float
    ended: int


def sweep(method: str, surface: Surface, seed: int, runs: int, quantile: float) -> Sweep:
    """A sweep of so many runs; with ``quantile`` 0 none is ended."""
    settings = replace(SweepSettings(max_suggestion_cost=surface.most), method=method)
    space, seen = surface.space, Observations(settings)
    chooser = make_method(space, settings, seed)
    best, spent, ended = (-math.inf, 0.0), 0.0, 0
    for number in range(runs):
        draw = np.random.default_rng([seed, number, 7])
        vector = chooser.suggest() if number else space.as_run(space.default[None])[0]
        values: dict[str, float] = dict(space.to_values(vector))
        steps, luck = values[COST], surface.noise * draw.standard_normal()
        watch, curve = EarlyStop(threshold(seen, quantile)), []
        for part in np.arange(1, LOGGED + 1) / LOGGED:
            true = surface.score(values, part * steps)
            score = true + luck + 0.5 * surface.noise * draw.standard_normal()
            cost = part * steps * surface.seconds(values) / 1e6
            curve.append((score, cost, part, true))
            if quantile and part < 1 and watch.should_stop(cost, score):
                ended += 1
                break
        spent += curve[-1][1]
        if math.isfinite(curve[-1][3]):
            best = max(best, (curve[-1][0], curve[-1][3]))
        for score, cost, part, _ in curve[:: -LOGGED // TOLD][::-1]:
            at = vector.copy()
            at[space.cost] = space.parameters[space.cost or 0].to_unit(part * steps)
            for tell in (seen.add, chooser.observe):
                tell(at, score, cost)
    return Sweep(best[1], spent, ended)


def main() -> None:
    """Sweep all, print a table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--quantile", type=float, default=SweepSettings.early_stop_quantile)
    parser.add_argument("--methods", nargs="+", default=["Random", "Protein"])
    parser.add_argument("--surfaces", nargs="+", default=["curves", "cliffs"])
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    made: dict[str, list[tuple[Sweep, Sweep]]] = {}
    print("| surface | method | best to the ends | best, ended early | cost saved | runs ended |")
    print("| --- | --- | --- | --- | --- | --- |")
    for surface in options.surfaces:
        for method in options.methods:
            pairs = []
            for seed in range(options.seeds):
                on = surfaces()[surface]
                plain = sweep(method, on, seed, options.runs, 0.0)
                pairs.append((plain, sweep(method, on, seed, options.runs, options.quantile)))
            made[f"{surface}, {method}"] = pairs
            best = [statistics.median(pair[k].best for pair in pairs) for k in (0, 1)]
            saved = statistics.median(1 - pair[1].seconds / pair[0].seconds for pair in pairs)
            ended = statistics.median(pair[1].ended for pair in pairs)
            scores = f"{best[0]:.3f} | {best[1]:.3f}"
            print(f"| {surface} | {method} | {scores} | {saved:.0%} | {ended:.0f} |", flush=True)
    if options.json:
        found = {
            name: [[s._asdict() for s in pair] for pair in pairs] for name, pairs in made.items()
        }
        record = {"versions": version_text().splitlines(), "runs": options.runs, "sweeps": found}
        with publish(options.json) as path:
            path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
