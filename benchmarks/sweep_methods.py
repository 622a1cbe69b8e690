#!/usr/bin/env python
"""Compare methods of sweeps: python benchmarks/sweep_methods.py [--json FILE] [--help].

Methods search synthetic surfaces, so a run takes no time and its true score is known. Each method
has the same budget of seconds for at most 120 runs, or with `--runs N` the same number of runs, and
starts with the same run. A run reports three points of its curve, with noise. TPE is Optuna's and
ignores costs; with `costs` it uses them as a second objective, and all three points. The results:

- best: the true score of the run with the best noisy score within max_suggestion_cost.
- front: the mean of the best scores at costs from 1 % to 100 % of max_suggestion_cost, evenly
  spaced on a logarithmic scale.

The surfaces: `curves`, saturating learning curves with 6 relevant and 6 irrelevant parameters,
where larger networks learn more, cost more and need a smaller learning rate; `cliffs`, 19
parameters with 4 relevant ones, a second, lower peak, and a region where runs fail; `equal`, the
first with runs of equal length; `edge`, the first with the best gamma and entropy bonus at an end
of their ranges; `plateau`, 12 parameters with 5 relevant ones, where most runs learn nothing.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.sweep.methods import make_method
from puffer_mlx.sweep.settings import BUILT_IN_METHODS, SweepSettings
from puffer_mlx.sweep.space import TIMESTEPS, Parameter, Space
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text

sys.path.insert(0, str(Path(__file__).parent))
from sweep_upstream import UpstreamProtein

POINTS = (0.25, 0.5, 1.0)  # fractions of a run at which it reports its score
MAX_RUNS = 120
GRID = np.geomspace(0.01, 1.0, 41)  # of max_suggestion_cost


class Surface(NamedTuple):
    """A synthetic search space with functions that give scores and costs of runs, untrained.

    Args:
        space: Search space.
        score: Maps values by name and steps to the true score after these steps; NaN if the run
            fails.
        seconds: Maps values by name to the seconds of a million steps.
        most: max_suggestion_cost, in seconds.
        budget: Seconds of a sweep.
        noise: Standard deviation of a run's scores.
        steps: Steps of every run. None: runs have different lengths.
    """

    space: Space
    score: Callable[[dict[str, float], float], float]
    seconds: Callable[[dict[str, float]], float]
    most: float
    budget: float
    noise: float = 0.02
    steps: float | None = None


def _parameter(name: str, distribution: str, low: float, high: float, **more: Any) -> Parameter:
    section, key = name.split(".")
    return Parameter(section, key, distribution, low, high, **more)


LENGTH = _parameter(TIMESTEPS, "log_normal", 3e7, 1e9, integer=True, default=5e7, scale=1 / 5.06)
MATTER = (
    _parameter("train.learning_rate", "log_normal", 1e-5, 0.1, default=1e-4),
    _parameter("train.gamma", "logit_normal", 0.8, 0.9999, default=0.9),
    _parameter("train.ent_coef", "log_normal", 1e-5, 0.2, default=0.05),
    _parameter("train.clip_coef", "uniform", 0.01, 1.0, default=0.8),
    _parameter("train.replay_ratio", "uniform", 0.25, 4.0, default=1.0),
    _parameter("policy.hidden_size", "uniform_pow2", 32, 1024, integer=True, default=64),
)
REST = tuple(
    _parameter(f"train.{key}", "uniform", 0.0, 1.0, default=0.5)
    for key in (
        "vf_coef",
        "vf_clip_coef",
        "max_grad_norm",
        "prio_alpha",
        "prio_beta0",
        "gae_lambda",
    )
)
MANY = tuple(_parameter(f"env.p{i}", "uniform", 0.0, 1.0, default=0.4) for i in range(14))


def _curve(values: dict[str, float], steps: float) -> float:
    """Return the score of simulated hyperparameters and steps: a saturating curve, 0 to 1.

    Near the best values, the curve rises earlier and higher.
    """
    wide = math.log2(values["policy.hidden_size"] / 128)
    distance = (math.log10(values["train.learning_rate"]) + 2.3 + 0.25 * wide) ** 2 / 0.8**2
    distance += (math.log10(1 - values["train.gamma"]) + 2.2) ** 2 / 0.6**2
    distance += (math.log10(values["train.ent_coef"]) + 2.6) ** 2 / 1.2**2
    distance += (values["train.clip_coef"] - 0.3) ** 2 / 0.5**2
    top = (0.75 + 0.08 * wide - 0.01 * wide**2) * math.exp(-0.15 * distance)
    pace = 4e7 * math.exp(0.3 * distance) / math.sqrt(values["train.replay_ratio"])
    return top * (1 - math.exp(-((steps / pace) ** 0.6)))


def _curve_seconds(values: dict[str, float]) -> float:
    return 0.3 + 0.5 * values["train.replay_ratio"] * (0.5 + values["policy.hidden_size"] / 256)


def _cliffs(values: dict[str, float], steps: float) -> float:
    """Return the score of simulated hyperparameters, with two peaks, a ridge and failures (NaN)."""
    rate = math.log10(values["train.learning_rate"])
    p = [values[f"env.p{i}"] for i in range(4)]
    if rate > -1.6 and p[0] > 0.5:
        return math.nan
    high = math.exp(-((rate + 2) ** 2) / 0.5 - (p[0] - 0.8) ** 2 / 0.06)
    low = 0.7 * math.exp(-((rate + 3.5) ** 2) / 1.0 - (p[0] - 0.3) ** 2 / 0.12)
    ridge = math.exp(-((p[1] - p[2]) ** 2) / 0.15 - (p[1] - 0.6) ** 2 / 0.4)
    return max(high, low) * ridge * (1 - math.exp(-((steps / 5e7) ** 0.7)))


def surfaces() -> dict[str, Surface]:
    """Return all synthetic surfaces on which sweep methods are compared, by name."""
    curves = Surface(Space((LENGTH, *MATTER, *REST)), _curve, _curve_seconds, 600.0, 4000.0)
    cliffs = Surface(Space((LENGTH, *MATTER[:4], *MANY)), _cliffs, lambda _: 1.0, 600.0, 4000.0)
    equal = Surface(Space((*MATTER[:5], *REST)), _equal, lambda _: 1.0, 600.0, 40 * 100.0)
    edge, plateau = curves._replace(score=_edge), curves._replace(score=_plateau, noise=0.05)
    equal = equal._replace(steps=1e8)
    return {"curves": curves, "cliffs": cliffs, "equal": equal, "edge": edge, "plateau": plateau}


def _equal(values: dict[str, float], steps: float) -> float:
    return _curve({**values, "policy.hidden_size": 128}, steps)


def _edge(values: dict[str, float], steps: float) -> float:
    """Return a simulated score whose best hyperparameters are at the ends of their ranges.

    The best gamma is the largest one, and the best entropy bonus the smallest one.
    """
    gamma = 1 - 10 ** ((math.log10(1 - values["train.gamma"]) + 4) * 0.5 - 2.2)
    bonus = 10 ** ((math.log10(values["train.ent_coef"]) + 5) * 0.5 - 2.6)
    return _curve({**values, "train.gamma": gamma, "train.ent_coef": bonus}, steps)


def _plateau(values: dict[str, float], steps: float) -> float:
    """Return a simulated score that is about 0 unless five hyperparameters are near their best.

    It resembles tasks with sparse rewards.
    """
    distance = ((math.log10(values["train.learning_rate"]) + 2.5) / 1.2) ** 4
    distance += ((math.log10(1 - values["train.gamma"]) + 2.0) / 0.8) ** 4
    distance += ((math.log10(values["train.ent_coef"]) + 2.3) / 1.2) ** 4
    distance += ((values["train.clip_coef"] - 0.4) / 0.5) ** 2
    distance += ((values["train.gae_lambda"] - 0.7) / 0.5) ** 2
    return math.exp(-distance) * (1 - math.exp(-((steps / 8e7) ** 1.5)))


class Point(NamedTuple):
    """A point of a simulated run's learning curve: noisy score, true score, and seconds so far."""

    noisy: float
    true: float
    cost: float


class Tpe:
    """Optuna's TPE search method, with the interface of puffer_mlx's sweep methods.

    Args:
        space: Search space.
        seed: Seed of the sampler.
        costs: True to use costs as a second objective, and also points before the end of a run.
    """

    def __init__(self, space: Space, seed: int, costs: bool) -> None:
        import warnings

        import optuna

        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.costs = space, costs
        aims: list[Any] = ["maximize", "minimize"] if costs else ["maximize"]
        sampler = optuna.samplers.TPESampler(seed=seed)
        self.study = optuna.create_study(directions=aims, sampler=sampler)
        uniform = optuna.distributions.FloatDistribution(-1.0, 1.0)
        self.ranges: dict[str, Any] = dict.fromkeys(space.names, uniform)

    def suggest(self) -> np.ndarray:
        trial = self.study.ask(self.ranges)
        self.trial, self.vector = trial, np.array([trial.params[n] for n in self.space.names])
        return self.space.round_vectors(self.vector[None])[0]

    def observe(self, vector: np.ndarray, score: float, cost: float, failed: bool = False) -> None:
        import optuna

        values = [score, math.log(cost)] if self.costs else [score]
        state = optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.COMPLETE
        params = dict(zip(self.space.names, np.clip(vector, -1, 1).tolist(), strict=True))
        self.study.add_trial(
            optuna.trial.create_trial(
                state=state,
                params=params,
                distributions=self.ranges,
                values=None if failed else values,
            )
        )


METHODS = ("Protein", "upstream", "ParetoGenetic", "Random", "TPE", "TPE, costs")


def make(name: str, space: Space, most: float, seed: int) -> Any:
    """Create a sweep method, such as random search or Protein, by its name.

    Args:
        name: Name in ``METHODS``.
        space: Search space.
        most: max_suggestion_cost, in seconds.
        seed: Seed of the method.
    """
    settings = SweepSettings(max_suggestion_cost=most)
    if name == "upstream":
        return UpstreamProtein(space, settings, seed)
    if name in BUILT_IN_METHODS:
        return make_method(space, replace(settings, method=name), seed)
    return Tpe(space, seed, costs="costs" in name)


def run(surface: Surface, vector: np.ndarray, draw: np.random.Generator) -> list[Point]:
    """Simulate one training run on a synthetic surface. Returns the points of its curve."""
    values: dict[str, float] = dict(surface.space.to_values(vector))
    steps = surface.steps or values[TIMESTEPS]
    fractions = [1.0] if surface.steps else POINTS
    luck = surface.noise * draw.standard_normal()
    points = []
    for fraction in fractions:
        true = surface.score(values, fraction * steps)
        noisy = true + luck + 0.5 * surface.noise * draw.standard_normal()
        points.append(Point(noisy, true, fraction * steps * surface.seconds(values) / 1e6))
    return points


def sweep(name: str, surface: Surface, seed: int, most: int = 0) -> dict[str, float]:
    """Simulate one sweep with a budget of seconds or runs.

    Returns the best score, the mean of best scores over costs, and the number of runs.
    """
    method, draw = make(name, surface.space, surface.most, seed), np.random.default_rng([seed, 99])
    space, all_points, spent, runs = surface.space, [], 0.0, 0
    vector = space.round_vectors(space.default[None])[0]
    while True:
        points = run(surface, vector, draw)
        spent += points[-1].cost
        if runs == (most or MAX_RUNS) or (not most and spent > surface.budget):
            break
        runs += 1
        failed = math.isnan(points[-1].true)
        observed_points = points[-1:] if failed or name == "TPE" else points
        for point in observed_points:
            at = vector.copy()
            if space.timesteps_index is not None:
                fraction = point.cost / points[-1].cost * space.to_values(vector)[TIMESTEPS]
                at[space.timesteps_index] = space.parameters[space.timesteps_index].to_coordinate(
                    fraction
                )
            method.observe(at, point.noisy, point.cost, failed=failed)
        all_points += [] if failed else points
        vector = method.suggest()
    return {
        "best": chosen(all_points, surface.most),
        "front": front(all_points, surface),
        "runs": runs,
    }


def chosen(points: list[Point], most: float) -> float:
    """Return the true score of the affordable point with the best noisy score; 0 without any.

    A point is affordable if it costs at most ``most``.
    """
    affordable = [point for point in points if point.cost <= most]
    return max(affordable, key=lambda point: point.noisy).true if affordable else 0.0


def front(points: list[Point], surface: Surface) -> float:
    """Return the best scores that a sweep found, averaged over increasing limits of cost."""
    return statistics.fmean(chosen(points, fraction * surface.most) for fraction in GRID)


def main() -> None:
    """Compare sweep methods on synthetic surfaces, print a table, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--surfaces", nargs="+", default=list(surfaces()), choices=surfaces())
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument(
        "--runs", type=int, default=0, help="runs per sweep (0: limited by its seconds)"
    )
    parser.add_argument("--json", type=Path, help="write the record to a file")
    options = parser.parse_args()
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    print("| surface | method | best: median (quartiles) | front: median (quartiles) | runs |")
    print("| --- | --- | --- | --- | --- |")
    for surface in options.surfaces:
        for name in options.methods:
            seeds = range(options.first_seed, options.first_seed + options.seeds)
            sweeps = [sweep(name, surfaces()[surface], seed, options.runs) for seed in seeds]
            results.setdefault(surface, {})[name] = sweeps
            best, line = (spread([each[key] for each in sweeps]) for key in ("best", "front"))
            runs = statistics.median(each["runs"] for each in sweeps)
            print(f"| {surface} | {name} | {best} | {line} | {runs:.0f} |", flush=True)
    if options.json:
        record = {"versions": version_text().splitlines(), "sweeps": results}
        write_json(record, options.json)


def spread(values: list[float]) -> str:
    """Format the median and the quartiles of values."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.3f} ({low:.3f}–{high:.3f})"


if __name__ == "__main__":
    main()
