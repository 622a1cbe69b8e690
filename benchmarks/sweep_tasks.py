#!/usr/bin/env python
"""Compare methods of sweeps on real tasks: python benchmarks/sweep_tasks.py [--json FILE] [--help].

Each sweep has the same budget of CPU-seconds for training, on shortened `cartpole` or `breakout`,
and starts with the same run. A sweep is one process with one thread, which trains one configuration
after the other, because starting processes would take longer than many of the runs. One sweep runs
per core; the method's time isn't counted. As in `puffer-mlx sweep`, all runs of a sweep have one
seed and report a few points of their curves. A score is the mean of the episodes that ended in the
last fifth of a run, or in the fifth before a point. TPE is Optuna's, with one objective and only
final scores. `upstream` is PufferLib's Protein, written from its description.

- best: the score of the best run.
- again: the mean score of its values with three other seeds, after the budget is spent.
- area: the mean of the best score over the spent seconds.

`--seconds` limits the duration of all sweeps; the table compares them at the CPU-seconds that all
have spent.
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
POINTS = (0.25, 0.5, 1.0)  # fractions of a run at which it reports its score
WINDOW = 0.2  # fraction of a run before a point, whose episodes count
SEED_OFFSETS = (1000, 2000, 3000)  # of the seeds that repeat the best run
MAX_COST_FRACTION = 0.2  # max_suggestion_cost as a fraction of the budget
VARIABLES = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "VECLIB_MAXIMUM")}
VARIABLES["MLX_DISABLE_COMPILE"] = "1"  # compiling C++ for each run would cost more than it saves
WRITE_INTERVAL = 20.0  # seconds between two writes of the results
COMMON_OPTIONS = [
    "--device",
    "cpu",
    "--vec.max-threads",
    "1",
    "--profile",
    "0",
    "--eval-episodes",
    "0",
]


class Task(NamedTuple):
    """A task to train in sweeps, and its search space.

    Args:
        arguments: Options of the command line.
        space: Search space. The first run has the values of the command line.
        budget: CPU-seconds of a sweep.
    """

    arguments: list[str]
    space: Space
    budget: float


def tasks() -> dict[str, Task]:
    """Return all tasks on which sweep methods are compared, by name."""
    cartpole = ["cartpole", "--vec.total-agents", "64", "--train.minibatch-size", "512"]
    breakout = ["breakout-fast", "--vec.total-agents", "128", "--train.minibatch-size", "1024"]
    breakout += ["--train.replay-ratio", "1"]
    return {
        "cartpole": _task([*cartpole, f"--{TIMESTEPS}=50000"], 3e4, 2e5, 60.0),
        "breakout": _task([*breakout, f"--{TIMESTEPS}=1000000"], 3e5, 2e6, 240.0),
    }


def _task(arguments: list[str], min_steps: float, max_steps: float, budget: float) -> Task:
    train = configs.load(arguments[0], arguments[1:]).train
    ranges = (
        _parameter(
            TIMESTEPS,
            "log_normal",
            min_steps,
            max_steps,
            integer=True,
            scale=1 / math.log2(max_steps / min_steps),
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
    return Task(
        arguments, Space([replace(p, default=getattr(train, p.key)) for p in ranges]), budget
    )


class Sweep(NamedTuple):
    """A sweep to run: names of the training task and the search method, and the seed."""

    task: str
    method: str
    seed: int


Values = dict[str, int | float]
Runs = list[dict[str, Any]]  # values and points [score, CPU-seconds, steps] of each run


def train(
    arguments: list[str], values: Values, seed: int, deadline: float
) -> list[list[float]] | None:
    """Train one configuration.

    Args:
        arguments: Options of the command line.
        values: Values of the searched parameters.
        seed: Seed of weights, actions and environments.
        deadline: Time at which to stop, as of ``time.time``.

    Returns:
        Points of the run's curve, empty if no episode ended, or None after the deadline.

    Raises:
        UserError: If the values can't be trained.
    """
    from puffer_mlx import vec
    from puffer_mlx.system.devices import select_device
    from puffer_mlx.training.placement import rollout_cores
    from puffer_mlx.training.trainer import Trainer

    value_options = [f"--{name}={value}" for name, value in values.items()]
    seeds = ["--seed", str(seed), "--vec.seed", str(1000 * seed)]
    config = configs.load(arguments[0], [*arguments[1:], *value_options, *COMMON_OPTIONS, *seeds])
    select_device(config.base.device)
    began, records = time.process_time(), []
    with vec.make(config, rollout_cores(config)) as environments:
        for logs in Trainer(config, environments):
            if time.time() > deadline:
                return None
            cost = time.process_time() - began
            scored = logs.get("env/n", 0), logs.get("env/score", 0.0)
            records.append((logs["agent_steps"], cost, *scored))
    return points(records)


def points(records: list[tuple[float, float, float, float]]) -> list[list[float]]:
    """Return score, CPU-seconds and steps at ``POINTS`` of a run.

    Points before the first ended episode are left out.

    Args:
        records: Steps, CPU-seconds, number of ended episodes and their mean score of each epoch.
    """
    curve_points: list[list[float]] = []
    steps = records[-1][0]
    for fraction in POINTS:
        earlier = [r for r in records if r[0] <= fraction * steps]
        recent = [r for r in earlier if r[0] > (fraction - WINDOW) * steps]
        if episodes := sum(r[2] for r in recent):
            score = sum(r[2] * r[3] for r in recent) / episodes
            curve_points.append([score, earlier[-1][1], earlier[-1][0]])
    return curve_points if curve_points and curve_points[-1][2] == steps else []


def sweep(
    sweep_id: Sweep, budget: float, deadline: float, report: Callable[[Runs, bool], None]
) -> None:
    """Run one sweep that trains in this process, until its budget or the deadline.

    Args:
        sweep_id: Task, method and seed.
        budget: Budget in CPU-seconds.
        deadline: Time at which to stop, as of ``time.time``.
        report: Called after each run with all runs, and True after the last one.
    """
    arguments, space, _ = tasks()[sweep_id.task]
    length = space.names.index(TIMESTEPS)
    config = configs.load(arguments[0], arguments[1:])
    method = make(sweep_id.method, space, MAX_COST_FRACTION * budget, sweep_id.seed)
    vector, spent, runs = space.round_vectors(space.default[None])[0], 0.0, []
    while spent < budget and time.time() < deadline:
        values = fit_sizes(space.to_values(vector), space, config)
        vector = space.round_vectors(space.to_coordinate(values)[None])[0]
        began = time.process_time()
        try:
            run_points = train(arguments, values, sweep_id.seed, deadline)
        except UserError:
            run_points = []
        if run_points is None:
            break
        spent += run_points[-1][1] if run_points else time.process_time() - began
        runs.append({"values": values, "points": run_points, "spent": spent})
        if not run_points:
            method.observe(vector, math.nan, 0.0, failed=True)
        for score, cost, steps in run_points[-1:] if sweep_id.method == "TPE" else run_points:
            at = vector.copy()
            at[length] = space.parameters[length].to_coordinate(steps)
            if steps >= space.parameters[length].low or sweep_id.method == "TPE":
                method.observe(at, score, cost)
        report(runs, False)
        vector = method.suggest()
    if (best := chosen(runs, math.inf)) is not None:
        again = [
            train(arguments, best["values"], sweep_id.seed + more, deadline)
            for more in SEED_OFFSETS
        ]
        best["again"] = [points[-1][0] for points in again if points]
    report(runs, True)


def chosen(runs: Runs, spent: float) -> dict[str, Any] | None:
    """Return the best run of a sweep that ended within some CPU-seconds, or None without any."""
    finished = [run for run in runs if run["points"] and run["spent"] <= spent]
    return max(finished, key=lambda run: run["points"][-1][0], default=None)


def area(runs: Runs, spent: float) -> float:
    """Return a sweep's best score so far, averaged over CPU-seconds; 0 before the first run."""
    at, best, total = 0.0, 0.0, 0.0
    for run in runs:
        upto = min(run["spent"], spent)
        total += best * (upto - at)
        at = upto
        if run["points"] and run["spent"] <= spent:
            best = max(best, run["points"][-1][0])
    return (total + best * (spent - at)) / spent


def work(sweep_id: Sweep, budget: float, deadline: float, results_queue: Any) -> None:
    """Run one sweep in this process, and put its runs into a queue for the main process."""
    sweep(sweep_id, budget, deadline, lambda runs, over: results_queue.put((sweep_id, runs, over)))


def main() -> None:
    """Run all sweeps in parallel processes, write the results, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(tasks()), choices=tasks())
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument(
        "--budget", type=float, default=1.0, help="factor of the tasks' budgets (1)"
    )
    parser.add_argument(
        "--at-once", type=int, default=os.cpu_count(), help="sweeps at a time (number of cores)"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="time limit of all sweeps")
    parser.add_argument("--json", type=Path, help="write the record to a file")
    options = parser.parse_args()
    began = time.time()
    os.environ.update(VARIABLES)  # of the processes
    spawned = multiprocessing.get_context("spawn")
    results_queue = spawned.Queue()
    waiting = [
        Sweep(task, method, seed)
        for task in sorted(options.tasks)  # Breakout's are the longer ones
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for method in options.methods
    ]
    runs_by_sweep: dict[Sweep, Runs] = {}
    running: dict[Sweep, Any] = {}
    written = began
    while waiting or running:
        while waiting and len(running) < options.at_once:
            sweep_id = waiting.pop(0)
            budget = options.budget * tasks()[sweep_id.task].budget
            arguments = sweep_id, budget, began + options.seconds, results_queue
            running[sweep_id] = spawned.Process(target=work, args=arguments)
            running[sweep_id].start()
        over = False
        try:
            sweep_id, runs_by_sweep[sweep_id], over = results_queue.get(timeout=1.0)
        except queue.Empty:
            for sweep_id in [each for each, process in running.items() if not process.is_alive()]:
                print(
                    f"{sweep_id} ended with exit code {running.pop(sweep_id).exitcode}",
                    file=sys.stderr,
                )
        if over:
            running.pop(sweep_id).join()
        if over or time.time() - written > WRITE_INTERVAL:
            write(options, runs_by_sweep, time.time() - began)
            written = time.time()
    print(f"{time.time() - began:.0f} s", file=sys.stderr)
    table(options, runs_by_sweep)


def write(options: argparse.Namespace, runs_by_sweep: dict[Sweep, Runs], seconds: float) -> None:
    """Write all runs of all sweeps to a JSON file, if ``--json`` names one."""
    if not options.json:
        return
    record = {
        "versions": version_text().splitlines(),
        "command": " ".join(sys.argv[1:]),
        "cores": os.cpu_count(),
        "seconds": round(seconds, 1),
        "budgets": {name: options.budget * each.budget for name, each in tasks().items()},
        "sweeps": [
            {**sweep_id._asdict(), "runs": runs} for sweep_id, runs in runs_by_sweep.items()
        ],
    }
    write_json(record, options.json, indent=None)


def table(options: argparse.Namespace, runs_by_sweep: dict[Sweep, Runs]) -> None:
    """Print a table that compares the sweep methods on each task, at equal CPU-seconds."""
    print("| task | method | best | again | area | runs | sweeps |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for task in options.tasks:
        budget = options.budget * tasks()[task].budget
        ends = [
            runs[-1]["spent"] if runs else 0.0
            for sweep_id, runs in runs_by_sweep.items()
            if sweep_id.task == task
        ]
        spent = min([budget, *ends])
        print(f"| {task}, {spent:.1f} of {budget:.0f} s | | | | | | |")
        for method in options.methods:
            method_runs = [
                r
                for sweep_id, r in runs_by_sweep.items()
                if (sweep_id.task, sweep_id.method) == (task, method)
            ]
            best = [each for runs in method_runs if (each := chosen(runs, spent))]
            if not best:
                continue
            again = [statistics.fmean(scores) for each in best if (scores := each.get("again"))]
            columns = (
                [each["points"][-1][0] for each in best],
                again,
                [area(r, spent) for r in method_runs],
            )
            cells = " | ".join(spread(each) if each else "" for each in columns)
            runs = statistics.median(sum(run["spent"] <= spent for run in r) for r in method_runs)
            print(f"| {task} | {method} | {cells} | {runs:.0f} | {len(method_runs)} |")


if __name__ == "__main__":
    main()
