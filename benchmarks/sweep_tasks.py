#!/usr/bin/env python
"""Compare methods of sweeps on real tasks: python benchmarks/sweep_tasks.py [--json FILE] [--help].

Each sweep has the same budget of CPU-seconds for training, on shortened `cartpole` or `breakout`,
and starts with the same run. It is one process with one thread, which trains one configuration
after the other, because starting processes would cost more than many of the runs. One sweep runs
per core; the method's own time isn't counted. As in `puffer-mlx sweep`, all runs of a sweep have
one seed and report a few points of their curves. A score is the mean of the episodes that ended in
the last fifth of a run, or of the part before a point. TPE is Optuna's, with one objective and
final scores only. `upstream` is PufferLib's Protein, written from its description.

- best: the score of the best run.
- again: the mean score of its values with three other seeds, after the budget is spent.
- area: the mean of the best score over the spent seconds.

With `--seconds` all sweeps end by then; the table compares at the seconds that all have spent.
"""

import argparse
import math
import multiprocessing
import os
import queue
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from puffer_mlx import config as configs
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.space import TIMESTEPS, Space, fit_sizes
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text

sys.path.insert(0, str(Path(__file__).parent))
from sweep_methods import _parameter, make, spread

METHODS = ("Protein", "TPE", "Random", "upstream")
POINTS = (0.25, 0.5, 1.0)  # of a run, at which it tells its score
WINDOW = 0.2  # of a run, before a point: what ended there counts
AGAIN = (1000, 2000, 3000)  # are added to a seed for the best run's values once more
DEAREST = 0.2  # of the budget: max_suggestion_cost
OWN = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "VECLIB_MAXIMUM")}
OWN["MLX_DISABLE_COMPILE"] = "1"  # a C++ compiler for each run would cost more than it saves
EVERY = 20.0  # seconds between two writes of the results
QUICK = ["--device", "cpu", "--vec.max-threads", "1", "--profile", "0", "--eval-episodes", "0"]


class Task(NamedTuple):
    """A task and its search space.

    Args:
        words: words of the command line.
        space: the searched space; the first run has the values of the words.
        budget: CPU-seconds of a sweep.
    """

    words: list[str]
    space: Space
    budget: float


def tasks() -> dict[str, Task]:
    """All of them by name."""
    cartpole = ["cartpole", "--vec.total-agents", "64", "--train.minibatch-size", "512"]
    breakout = ["breakout-fast", "--vec.total-agents", "128", "--train.minibatch-size", "1024"]
    breakout += ["--train.replay-ratio", "1"]
    return {
        "cartpole": _task([*cartpole, f"--{TIMESTEPS}=50000"], 3e4, 2e5, 60.0),
        "breakout": _task([*breakout, f"--{TIMESTEPS}=1000000"], 3e5, 2e6, 240.0),
    }


def _task(words: list[str], least: float, most: float, budget: float) -> Task:
    train = configs.load(words[0], words[1:]).train
    ranges = (
        _parameter(
            TIMESTEPS, "log_normal", least, most, integer=True, scale=1 / math.log2(most / least)
        ),
        _parameter("train.learning_rate", "log_normal", 1e-3, 0.3),
        _parameter("train.gamma", "logit_normal", 0.8, 0.9999),
        _parameter("train.gae_lambda", "logit_normal", 0.2, 0.995),
        _parameter("train.ent_coef", "log_normal", 1e-5, 0.1),
        _parameter("train.clip_coef", "uniform", 0.05, 1.0),
        _parameter("train.vf_coef", "uniform", 0.1, 5.0),
        _parameter("train.vf_clip_coef", "uniform", 0.1, 5.0),
        _parameter("train.max_grad_norm", "uniform", 0.1, 5.0),
        _parameter("train.replay_ratio", "uniform", 0.25, 4.0),
        _parameter("train.horizon", "uniform_pow2", 8, 64, integer=True),
    )
    return Task(words, Space([replace(p, default=getattr(train, p.key)) for p in ranges]), budget)


class Sweep(NamedTuple):
    """One sweep to make: a task's name, a method's, and the seed."""

    task: str
    method: str
    seed: int


Values = dict[str, int | float]
Made = list[dict[str, Any]]  # runs: their values, their points [score, CPU-seconds, steps]


def train(words: list[str], values: Values, seed: int, until: float) -> list[list[float]] | None:
    """Return the points of one run, without points if no episode ended; None after ``until``.

    Args:
        words: words of the command line.
        values: values of the searched parameters.
        seed: seed of weights, actions and environments.
        until: time at which to stop, as of ``time.time``.

    Raises:
        UserError: the values can't be run.
    """
    from puffer_mlx import vec
    from puffer_mlx.system.devices import select_device
    from puffer_mlx.training.placement import rollout_cores
    from puffer_mlx.training.trainer import Trainer

    given = [f"--{name}={value}" for name, value in values.items()]
    seeds = ["--seed", str(seed), "--vec.seed", str(1000 * seed)]
    config = configs.load(words[0], [*words[1:], *given, *QUICK, *seeds])
    select_device(config.base.device)
    began, records = time.process_time(), []
    with vec.make(config, rollout_cores(config)) as environments:
        for logs in Trainer(config, environments):
            if time.time() > until:
                return None
            cost = time.process_time() - began
            scored = logs.get("env/n", 0), logs.get("env/score", 0.0)
            records.append((logs["agent_steps"], cost, *scored))
    return points(records)


def points(records: list[tuple[float, float, float, float]]) -> list[list[float]]:
    """Score, CPU-seconds and steps at ``POINTS`` of a run; without those before any episode ended.

    Args:
        records: steps, CPU-seconds, episodes that ended, and their mean score.
    """
    made: list[list[float]] = []
    steps = records[-1][0]
    for part in POINTS:
        told = [r for r in records if r[0] <= part * steps]
        late = [r for r in told if r[0] > (part - WINDOW) * steps]
        if episodes := sum(r[2] for r in late):
            score = sum(r[2] * r[3] for r in late) / episodes
            made.append([score, told[-1][1], told[-1][0]])
    return made if made and made[-1][2] == steps else []


def sweep(what: Sweep, budget: float, until: float, tell: Callable[[Made, bool], None]) -> None:
    """Make one sweep.

    Args:
        what: task, method and seed.
        budget: budget in CPU-seconds.
        until: time at which to stop, as of ``time.time``.
        tell: called after each run with all runs, and True after the last one.
    """
    words, space, _ = tasks()[what.task]
    length = space.names.index(TIMESTEPS)
    config = configs.load(words[0], words[1:])
    method = make(what.method, space, DEAREST * budget, what.seed)
    vector, spent, runs = space.round_vectors(space.default[None])[0], 0.0, []
    while spent < budget and time.time() < until:
        values = fit_sizes(space.to_values(vector), space, config)
        vector = space.round_vectors(space.to_unit(values)[None])[0]
        before = time.process_time()
        try:
            found = train(words, values, what.seed, until)
        except UserError:
            found = []
        if found is None:
            break
        spent += found[-1][1] if found else time.process_time() - before
        runs.append({"values": values, "points": found, "spent": spent})
        if not found:
            method.observe(vector, math.nan, 0.0, failed=True)
        for score, cost, steps in found[-1:] if what.method == "TPE" else found:
            at = vector.copy()
            at[length] = space.parameters[length].to_unit(steps)
            if steps >= space.parameters[length].low or what.method == "TPE":
                method.observe(at, score, cost)
        tell(runs, False)
        vector = method.suggest()
    if (best := chosen(runs, math.inf)) is not None:
        again = [train(words, best["values"], what.seed + more, until) for more in AGAIN]
        best["again"] = [points[-1][0] for points in again if points]
    tell(runs, True)


def chosen(runs: Made, spent: float) -> dict[str, Any] | None:
    """Return the best run after a number of CPU-seconds, None without runs."""
    there = [run for run in runs if run["points"] and run["spent"] <= spent]
    return max(there, key=lambda run: run["points"][-1][0], default=None)


def area(runs: Made, spent: float) -> float:
    """The mean of the best score so far over that many CPU-seconds; 0 before the first run's."""
    at, best, total = 0.0, 0.0, 0.0
    for run in runs:
        upto = min(run["spent"], spent)
        total += best * (upto - at)
        at = upto
        if run["points"] and run["spent"] <= spent:
            best = max(best, run["points"][-1][0])
    return (total + best * (spent - at)) / spent


def work(what: Sweep, budget: float, until: float, told: Any) -> None:
    """A process: one sweep."""
    sweep(what, budget, until, lambda runs, over: told.put((what, runs, over)))


def main() -> None:
    """Run all sweeps, write each result at once, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(tasks()), choices=tasks())
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=1.0, help="times the tasks' own (1)")
    parser.add_argument("--at-once", type=int, default=os.cpu_count(), help="sweeps (cores)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end by then")
    parser.add_argument("--json", type=Path, help="write the sweeps here")
    options = parser.parse_args()
    began = time.time()
    os.environ.update(OWN)  # of the processes
    spawned = multiprocessing.get_context("spawn")
    told = spawned.Queue()
    waiting = [
        Sweep(task, method, seed)
        for task in sorted(options.tasks)  # Breakout's are the longer ones
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for method in options.methods
    ]
    made: dict[Sweep, Made] = {}
    going: dict[Sweep, Any] = {}
    written = began
    while waiting or going:
        while waiting and len(going) < options.at_once:
            what = waiting.pop(0)
            budget = options.budget * tasks()[what.task].budget
            words = what, budget, began + options.seconds, told
            going[what] = spawned.Process(target=work, args=words)
            going[what].start()
        over = False
        try:
            what, made[what], over = told.get(timeout=1.0)
        except queue.Empty:
            for what in [each for each, process in going.items() if not process.is_alive()]:
                print(f"{what} ended with exit code {going.pop(what).exitcode}", file=sys.stderr)
        if over:
            going.pop(what).join()
        if over or time.time() - written > EVERY:
            write(options, made, time.time() - began)
            written = time.time()
    print(f"{time.time() - began:.0f} s", file=sys.stderr)
    table(options, made)


def write(options: argparse.Namespace, made: dict[Sweep, Made], seconds: float) -> None:
    """Write all runs of all sweeps."""
    if not options.json:
        return
    record = {
        "versions": version_text().splitlines(),
        "command": " ".join(sys.argv[1:]),
        "cores": os.cpu_count(),
        "seconds": round(seconds, 1),
        "budgets": {name: options.budget * each.budget for name, each in tasks().items()},
        "sweeps": [{**what._asdict(), "runs": runs} for what, runs in made.items()],
    }
    write_json(record, options.json, indent=None)


def table(options: argparse.Namespace, made: dict[Sweep, Made]) -> None:
    """Print what was found for the CPU-seconds that every sweep of a task had spent."""
    print("| task | method | best | again | area | runs | sweeps |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for task in options.tasks:
        budget = options.budget * tasks()[task].budget
        ends = [
            runs[-1]["spent"] if runs else 0.0 for what, runs in made.items() if what.task == task
        ]
        spent = min([budget, *ends])
        print(f"| {task}, {spent:.1f} of {budget:.0f} s | | | | | | |")
        for method in options.methods:
            found = [r for what, r in made.items() if (what.task, what.method) == (task, method)]
            best = [each for runs in found if (each := chosen(runs, spent))]
            if not best:
                continue
            again = [statistics.fmean(scores) for each in best if (scores := each.get("again"))]
            columns = (
                [each["points"][-1][0] for each in best],
                again,
                [area(r, spent) for r in found],
            )
            cells = " | ".join(spread(each) if each else "" for each in columns)
            runs = statistics.median(sum(run["spent"] <= spent for run in r) for r in found)
            print(f"| {task} | {method} | {cells} | {runs:.0f} | {len(found)} |")


if __name__ == "__main__":
    main()
