#!/usr/bin/env python
"""Measure the gain of early stops: python benchmarks/sweep_early_stop.py [--json FILE] [--help].

Simulated runs on sweep_methods.py's surfaces log their score, with noise, at 40 points of their
curves. Each method sweeps twice with the same budget of simulated seconds and the same first run:

- to their ends: all runs are complete.
- ended: `EarlyStop` ends runs early as in `puffer-mlx sweep`, given the earlier finished runs.
  `puffer-mlx sweep` doesn't use it with Protein, because it saves nothing there.

A sweep chooses its best run by the noisy scores at the runs' ends; the table has this run's score
without noise, as a mean over the seeds, after 50 %, 70 % and 100 % of the budget. The saving is the
fraction of the budget that sweeps with early stops don't need to reach the final mean of complete
runs.

`Random` suggests the same runs in both cases, and more of them with early stops; `Protein` and
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

LOGGED_POINTS = 40  # per run
OBSERVED_POINTS = 4  # points of a run's curve that are passed to the method
QUANTILES = {"to their ends": 0.0, "ended": 0.3}  # case -> early_stop_quantile
BUDGETS = {"Random": 30_000.0, "Protein": 4000.0, "ParetoGenetic": 4000.0}  # seconds
BUDGET_FRACTIONS = 0.5, 0.7, 1.0  # columns of the table


class Sweep(NamedTuple):
    """Results of one simulated sweep.

    Args:
        curve: Total seconds and the true score of the best run so far, after each run.
        runs: Number of runs.
        ended: Number of runs that ended early.
    """

    curve: list[tuple[float, float]]
    runs: int
    ended: int

    def best(self, seconds: float) -> float:
        """Return the true score of the best run after some seconds; 0 before the first run."""
        return next((best for spent, best in reversed(self.curve) if spent <= seconds), 0.0)


def sweep(method: str, surface: Surface, seed: int, budget: float, quantile: float) -> Sweep:
    """Simulate one sweep, with early stops of runs, until a budget of seconds is spent.

    Args:
        method: Name of the method.
        surface: Surface to search.
        seed: Seed of the method and the noise.
        budget: Budget in seconds.
        quantile: early_stop_quantile. 0: all runs are complete.
    """
    settings = replace(SweepSettings(max_suggestion_cost=surface.most), method=method)
    space = surface.space
    finished: list[np.ndarray] = []  # points of the finished runs: score, cost
    searcher = make_method(space, settings, seed)
    best = (-math.inf, 0.0)  # noisy and true score of the best complete run
    spent = 0.0
    ended = 0
    number = 0
    best_curve: list[tuple[float, float]] = []
    while spent < budget:
        rng = np.random.default_rng([seed, number, 7])
        vector = searcher.suggest() if number else space.round_vectors(space.default[None])[0]
        number += 1
        values: dict[str, float] = dict(space.to_values(vector))
        steps = values[TIMESTEPS]
        run_noise = surface.noise * rng.standard_normal()
        early_stop = EarlyStop(finished, quantile)
        points: list[tuple[float, float, float]] = []  # noisy score, cost, fraction of the steps
        true_score = 0.0
        stopped = False
        for fraction in np.arange(1, LOGGED_POINTS + 1) / LOGGED_POINTS:
            true_score = surface.score(values, fraction * steps)
            score = true_score + run_noise + 0.5 * surface.noise * rng.standard_normal()
            cost = fraction * steps * surface.seconds(values) / 1e6
            points.append((score, cost, fraction))
            if not math.isfinite(true_score):
                break
            if quantile and fraction < 1 and early_stop.should_stop(cost, score):
                stopped = True
                break
        end_score, end_cost, _ = points[-1]
        spent += end_cost
        if not math.isfinite(true_score):
            searcher.observe(vector, math.nan, 0.0, failed=True)
            continue
        ended += stopped
        if not stopped:
            best = max(best, (end_score, true_score))
        best_curve.append((float(spent), float(best[1])))
        # Every tenth point, counted from the end.
        observed_points = points[:: -(LOGGED_POINTS // OBSERVED_POINTS)][::-1]
        if not stopped:
            finished.append(np.array([(score, cost) for score, cost, _ in observed_points]))
        timesteps_index = space.timesteps_index or 0
        for score, cost, fraction in observed_points:
            shortened = vector.copy()
            timesteps = space.parameters[timesteps_index]
            shortened[timesteps_index] = timesteps.to_coordinate(fraction * steps)
            searcher.observe(shortened, score, cost)
    return Sweep(best_curve, number, ended)


def mean_best(sweeps_of_seeds: list[Sweep], seconds: float) -> float:
    """Return the best score that sweeps have found after some seconds, averaged over the sweeps."""
    return statistics.fmean(each.best(seconds) for each in sweeps_of_seeds)


def saved(plain: list[Sweep], ended: list[Sweep], budget: float) -> float:
    """Return the fraction of a sweep's time that early stops of runs save.

    This is the time until the mean best score equals that of sweeps without early stops.

    Returns -inf if sweeps with early stops never reach this score.
    """
    score_level = mean_best(plain, budget)
    return 1 - seconds_to(ended, score_level, budget) / seconds_to(plain, score_level, budget)


def seconds_to(sweeps_of_seeds: list[Sweep], score_level: float, budget: float) -> float:
    """Return the seconds after which sweeps' mean best score reaches a score; inf if never."""
    times = sorted(
        {spent for each in sweeps_of_seeds for spent, _ in each.curve if spent <= budget}
    )
    reached = (t for t in times if mean_best(sweeps_of_seeds, t) >= score_level - 1e-9)
    return next(reached, math.inf)


def main() -> None:
    """Run all simulated sweeps with and without early stops.

    Prints a table, and writes the record.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=["Random", "Protein"], choices=BUDGETS)
    parser.add_argument("--surfaces", nargs="+", default=["curves"], choices=["curves", "cliffs"])
    parser.add_argument("--json", type=Path, help="write the record to a file")
    options = parser.parse_args()
    sweeps_by_name: dict[str, dict[str, list[Sweep]]] = {}
    print("| surface | method | runs | best after 50, 70, 100 % | saved | ended early, of all |")
    print("| --- | --- | --- | --- | --- | --- |")
    for surface in options.surfaces:
        for method in options.methods:
            budget = BUDGETS[method]
            sweeps_by_case: dict[str, list[Sweep]] = {}
            for name, quantile in QUANTILES.items():
                sweeps_by_case[name] = [
                    sweep(method, surfaces()[surface], seed, budget, quantile)
                    for seed in range(options.seeds)
                ]
                print(row(surface, method, name, sweeps_by_case, budget), flush=True)
            sweeps_by_name[f"{surface}, {method}"] = sweeps_by_case
    if options.json:
        write(options.json, sweeps_by_name)


def row(
    surface: str, method: str, name: str, sweeps_by_case: dict[str, list[Sweep]], budget: float
) -> str:
    """Return a line of the Markdown table of early stops: best scores, saved time, ended runs."""
    sweeps = sweeps_by_case[name]
    best = ", ".join(f"{mean_best(sweeps, fraction * budget):.3f}" for fraction in BUDGET_FRACTIONS)
    saving = f"{saved(sweeps_by_case['to their ends'], sweeps, budget):.0%}"
    ended = statistics.fmean(each.ended for each in sweeps)
    runs = statistics.fmean(each.runs for each in sweeps)
    return f"| {surface} | {method} | {name} | {best} | {saving} | {ended:.1f} of {runs:.1f} |"


def write(path: Path, sweeps_by_name: dict[str, dict[str, list[Sweep]]]) -> None:
    """Write the results of all simulated sweeps to a file.

    Curves only contain the points where the best score changed.
    """

    def to_record(each: Sweep) -> dict[str, object]:
        points = [(round(spent, 1), round(best, 4)) for spent, best in each.curve]
        previous_best = [None, *(best for _, best in points[:-1])]
        changes = [p for p, best in zip(points, previous_best, strict=True) if p[1] != best]
        return {**each._asdict(), "curve": changes, "seconds": points[-1][0]}

    sweeps = {
        name: {
            case: [to_record(each) for each in sweeps] for case, sweeps in sweeps_by_case.items()
        }
        for name, sweeps_by_case in sweeps_by_name.items()
    }
    record = {"versions": version_text().splitlines(), "budgets": BUDGETS, "sweeps": sweeps}
    write_json(record, path, indent=None)


if __name__ == "__main__":
    main()
