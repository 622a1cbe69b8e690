#!/usr/bin/env python
"""Measure the gain of early stops: python benchmarks/sweep_early_stop.py [--json FILE] [--help].

Runs of sweep_methods.py's surfaces log their score, with noise, at 40 points of their curves. Each
method has an equal budget of seconds in two forms, and starts both with the same run:

- to their ends: all runs are complete.
- ended: `EarlyStop` ends runs as in `puffer-mlx sweep`, given the earlier finished runs.
  `puffer-mlx sweep` doesn't use it with Protein, because it saves nothing there.

After each run, the best is the true score of the run with the best noisy score at its end. The
table has the mean over the seeds after 50 %, 70 % and 100 % of the seconds. The saving is the share
of the seconds that the form `ended` doesn't need to reach the final mean of complete runs.

`Random` suggests the same runs in both forms, and more of them in `ended`; `Protein` and
`ParetoGenetic` learn from all points of a run.
"""

import argparse
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from puffer_mlx.sweep.methods import make_method
from puffer_mlx.sweep.observations import EarlyStop
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import TIMESTEPS
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text

sys.path.insert(0, str(Path(__file__).parent))
from sweep_methods import Surface, surfaces

LOGGED = 40  # points of a run
TOLD = 4  # of them its observations
FORMS = {"to their ends": 0.0, "ended": 0.3}  # their early_stop_quantile
BUDGETS = {"Random": 30_000.0, "Protein": 4000.0, "ParetoGenetic": 4000.0}  # seconds
PARTS = 0.5, 0.7, 1.0  # of a budget, at which the table has the best score


class Sweep(NamedTuple):
    """One sweep.

    Args:
        curve: total seconds and the true score of the best values, after each run.
        runs: number of runs.
        ended: number of runs that ended early.
    """

    curve: list[tuple[float, float]]
    runs: int
    ended: int

    def best(self, seconds: float) -> float:
        """Return the true score of the best values after some seconds, 0 before the first run."""
        return next((best for spent, best in reversed(self.curve) if spent <= seconds), 0.0)


def sweep(method: str, surface: Surface, seed: int, budget: float, quantile: float) -> Sweep:
    """A sweep until its seconds are spent."""
    settings = replace(SweepSettings(max_suggestion_cost=surface.most), method=method)
    space = surface.space
    finished: list[np.ndarray] = []  # points of the finished runs: score, cost
    chooser = make_method(space, settings, seed)
    best, spent, ended, number = (-math.inf, 0.0), 0.0, 0, 0
    made: list[tuple[float, float]] = []
    while spent < budget:
        draw = np.random.default_rng([seed, number, 7])
        vector = chooser.suggest() if number else space.round_vectors(space.default[None])[0]
        number += 1
        values: dict[str, float] = dict(space.to_values(vector))
        steps, luck = values[TIMESTEPS], surface.noise * draw.standard_normal()
        watch = EarlyStop(finished, quantile)
        curve, stopped = [], False
        for part in np.arange(1, LOGGED + 1) / LOGGED:
            true = surface.score(values, part * steps)
            score = true + luck + 0.5 * surface.noise * draw.standard_normal()
            cost = part * steps * surface.seconds(values) / 1e6
            curve.append((score, cost, part, true))
            if not math.isfinite(true):
                break
            if quantile and part < 1 and watch.should_stop(cost, score):
                stopped = True
                break
        spent += curve[-1][1]
        if not math.isfinite(curve[-1][3]):
            chooser.observe(vector, math.nan, 0.0, failed=True)
            continue
        ended += stopped
        if not stopped:
            best = max(best, (curve[-1][0], curve[-1][3]))
        made.append((float(spent), float(best[1])))
        told = curve[:: -LOGGED // TOLD][::-1]
        if not stopped:
            finished.append(np.array([(score, cost) for score, cost, _, _ in told]))
        for score, cost, part, _ in told:
            at = vector.copy()
            at[space.timesteps_index] = space.parameters[space.timesteps_index or 0].to_unit(
                part * steps
            )
            chooser.observe(at, score, cost)
    return Sweep(made, number, ended)


def mean_best(made: list[Sweep], seconds: float) -> float:
    """Over the seeds."""
    return statistics.fmean(each.best(seconds) for each in made)


def saved(plain: list[Sweep], ended: list[Sweep], budget: float) -> float:
    """Return the share of seconds that early stops save until the same mean best.

    Returns -inf if they never reach it.
    """
    level = mean_best(plain, budget)
    return 1 - seconds_to(ended, level, budget) / seconds_to(plain, level, budget)


def seconds_to(made: list[Sweep], level: float, budget: float) -> float:
    """After how many seconds the mean best is at a level; inf if it never is."""
    times = sorted({spent for each in made for spent, _ in each.curve if spent <= budget})
    return next((at for at in times if mean_best(made, at) >= level - 1e-9), math.inf)


def main() -> None:
    """Sweep all, print a table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=["Random", "Protein"], choices=BUDGETS)
    parser.add_argument("--surfaces", nargs="+", default=["curves"], choices=["curves", "cliffs"])
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    found: dict[str, dict[str, list[Sweep]]] = {}
    print("| surface | method | runs go on | best after 50, 70, 100 % | saved | ended of runs |")
    print("| --- | --- | --- | --- | --- | --- |")
    for surface in options.surfaces:
        for method in options.methods:
            budget, forms = BUDGETS[method], {}
            for name, quantile in FORMS.items():
                on, seeds = surfaces()[surface], range(options.seeds)
                forms[name] = [sweep(method, on, seed, budget, quantile) for seed in seeds]
                print(row(surface, method, name, forms, budget), flush=True)
            found[f"{surface}, {method}"] = forms
    if options.json:
        write(options.json, found)


def row(surface: str, method: str, name: str, forms: dict[str, list[Sweep]], budget: float) -> str:
    """A line of the table."""
    made = forms[name]
    best = ", ".join(f"{mean_best(made, part * budget):.3f}" for part in PARTS)
    less = f"{saved(forms['to their ends'], made, budget):.0%}"
    ended, runs = (
        statistics.fmean(x) for x in zip(*((m.ended, m.runs) for m in made), strict=True)
    )
    return f"| {surface} | {method} | {name} | {best} | {less} | {ended:.1f} of {runs:.1f} |"


def write(path: Path, found: dict[str, dict[str, list[Sweep]]]) -> None:
    """Write all sweeps; of their curves where the best became another, and the end."""

    def written(each: Sweep) -> dict[str, object]:
        points = [(round(spent, 1), round(best, 4)) for spent, best in each.curve]
        before = [None, *(best for _, best in points[:-1])]
        kept = [p for p, best in zip(points, before, strict=True) if p[1] != best]
        return {**each._asdict(), "curve": kept, "seconds": points[-1][0]}

    sweeps = {
        name: {form: [written(each) for each in made] for form, made in forms.items()}
        for name, forms in found.items()
    }
    record = {"versions": version_text().splitlines(), "budgets": BUDGETS, "sweeps": sweeps}
    write_json(record, path, indent=None)


if __name__ == "__main__":
    main()
