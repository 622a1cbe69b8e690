"""Verify that tasks still learn as recorded, in half an hour on one core.

Trains some tasks of `learning_tasks.py` with other seeds than the records'; long tasks are stopped
early with unchanged schedules. The mean of the last 100 training episodes (in C: of the episodes
that ended in the last 40th of the run's steps) is compared with the task's record at the same step:
it must reach the lowest seed's score, less a fraction of what was learned since the curve's first
point. New records with better settings therefore raise the requirement. A task fails if more than a
fraction of its seeds fail.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from learning_processes import log_of, process, side_by_side
from learning_record import Run
from learning_runs import CURVE_POINTS, RunOptions, script, training
from learning_table import load
from learning_tasks import PUFFER_MLX, metric

from puffer_mlx.errors import UserError

MARGIN = 0.2  # fraction of what was learned that a seed may miss
SEEDS = 7, 8, 9
STOP_STEPS = {  # task -> step to stop at; 0: the task's number of steps
    "CartPole-v1": 0,
    "Pendulum-v1": 0,
    "Acrobot-v1": 200_000,
    "LunarLander-v3": 300_000,
    "HalfCheetah-v5": 200_000,
    "MiniGrid-DoorKey-5x5-v0": 0,
    "cartpole": 0,
    "catch": 0,
    "connect4": 5_000_000,
    "target": 5_000_000,
    "memory-MinGRU": 0,
}


class Night(NamedTuple):
    """Result of training a task again with one seed: the score, and the score that is required."""

    steps: float
    score: float
    required: float

    @property
    def ok(self) -> bool:
        return self.score >= self.required


def least(record: Any, steps: float, margin: float) -> float:
    """Return the score that a run must reach at a step: the lowest recorded one, less a margin.

    Args:
        record: Record of the task.
        steps: Step at which to compare.
        margin: Fraction of what was learned that may be missing.
    """
    curves = [np.array(run["curve"]) for run in record["seeds"].values() if run["curve"]]
    low = min(float(np.interp(steps, curve[:, 0], curve[:, 1])) for curve in curves)
    start = statistics.fmean(float(curve[0, 1]) for curve in curves)
    return low - margin * abs(low - start)


def reached(records: list[dict[str, float]], measured: str, window: float) -> tuple[float, float]:
    """Return the last step of a run, and its training score at the end.

    Args:
        records: Log of the run.
        measured: Key of the score.
        window: Steps at the end over which to average episodes. 0: use the mean of the last 100
            episodes, as Python environments report it.

    Raises:
        UserError: If no episode ended.
    """
    trained = [record for record in records if "loss/total" in record]
    last = trained[-1]["agent_steps"]
    if not window:
        scores = [record["env/score_100"] for record in trained if "env/score_100" in record]
        if scores:
            return last, scores[-1]
    finished = [r for r in trained if r.get("env/n") and r["agent_steps"] > last - window]
    if not finished:
        raise UserError("no episode ended", "train for more steps")
    count = sum(record["env/n"] for record in finished)
    return last, sum(record[measured] * record["env/n"] for record in finished) / count


def night(
    name: str, seed: int, record: Any, run_options: RunOptions, margin: float, cores: set[int]
) -> Night:
    """Train a task with one seed, up to its stop step. Returns the score and the required one."""
    task, stop = run_options.task(name), STOP_STEPS[name]
    arguments = [*training(Run(name, PUFFER_MLX, seed), run_options), "--eval-episodes", "0"]
    with tempfile.TemporaryDirectory() as folder:
        stopping = ["--stop-at", str(stop)] if stop else []
        process([*script("train"), *arguments, *stopping], cores, Path(folder))
        records = log_of(Path(folder))
    total_steps = max(run["steps"] for run in record["seeds"].values())
    window = 0 if task.python else total_steps / CURVE_POINTS
    steps, score = reached(records, metric(task.environment), window)
    return Night(steps, score, least(record, steps, margin))


def line(name: str, results: list[Night], fraction: float) -> tuple[bool, str]:
    """Decide if a task still learns, from the scores of its seeds.

    Returns:
        True if at most a fraction ``fraction`` of the seeds failed; and the result as text.
    """
    failed = sum(not result.ok for result in results)
    ok = failed <= fraction * len(results)
    scores = ", ".join(f"{result.score:,.2f}" for result in results)
    return ok, (
        f"{'ok' if ok else 'FAIL':4} {name}: {scores} after {results[0].steps:,.0f} steps, expected"
        f" at least {results[0].required:,.2f}: {failed} of {len(results)} seeds failed"
    )


def nightly(names: list[str], run_options: RunOptions, margin: float, fraction: float) -> bool:
    """Train tasks again, and print a line for each. Returns True if all still learn as recorded.

    Raises:
        UserError: If a task isn't one of ``STOP_STEPS``, or has no record.
    """
    names, records = names or list(STOP_STEPS), load(run_options.out)
    if unknown := [name for name in names if name not in STOP_STEPS]:
        raise UserError(f"no nightly task {', '.join(unknown)}", f"of {', '.join(STOP_STEPS)}")
    if missing := [name for name in names if (name, PUFFER_MLX) not in records]:
        raise UserError(
            f"no record of {', '.join(missing)} to compare with",
            f"python benchmarks/learning.py {' '.join(missing)}",
        )

    def check_task(name: str, cores: set[int]) -> bool:
        try:
            record = records[name, PUFFER_MLX]
            results = [night(name, seed, record, run_options, margin, cores) for seed in SEEDS]
            ok, arguments = line(name, results, fraction)
            print(arguments, flush=True)
            return ok
        except UserError as error:
            print(f"FAIL {name}: {error}", flush=True)
            return False

    return all(side_by_side(check_task, names, run_options.jobs, run_options.threads))
