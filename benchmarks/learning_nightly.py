"""Verify that tasks still learn as recorded, in half an hour on one core.

Trains some tasks of `learning_tasks.py` with other seeds than the records'. Long tasks are stopped
early; learning rates and other schedules are those of the complete run.

A run's score is the mean of its last 100 training episodes, or for C environments of the episodes
that ended in the last 40th of the steps. It is compared with the task's record at the same step: it
must reach the lowest recorded seed's score, less a margin, a fraction of what was learned since the
curve's first point. So better records raise the requirement. A task fails if more than a fraction
of its seeds fail.
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


class SeedResult(NamedTuple):
    """Result of training a task with one seed.

    Args:
        steps: Steps at the end of the run.
        score: Score at the end of the run.
        required: Score that the run had to reach.
    """

    steps: float
    score: float
    required: float

    @property
    def ok(self) -> bool:
        """True if the run reached the required score."""
        return self.score >= self.required


def required_score(record: Any, steps: float, margin: float) -> float:
    """Return the required score at a step: the lowest recorded score, less a margin.

    Args:
        record: Record of the task.
        steps: Step at which to compare.
        margin: Fraction of what was learned that may be missing.
    """
    curves = [np.array(run["curve"]) for run in record["seeds"].values() if run["curve"]]
    lowest = min(float(np.interp(steps, curve[:, 0], curve[:, 1])) for curve in curves)
    start = statistics.fmean(float(curve[0, 1]) for curve in curves)
    return lowest - margin * abs(lowest - start)


def final_score(
    records: list[dict[str, float]], score_name: str, window: float
) -> tuple[float, float]:
    """Return the last step of a run, and its training score at the end.

    Args:
        records: Log of the run.
        score_name: Name of the score in the log's records.
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
    return last, sum(record[score_name] * record["env/n"] for record in finished) / count


def train_seed(
    name: str, seed: int, record: Any, run_options: RunOptions, margin: float, cores: set[int]
) -> SeedResult:
    """Train a task with one seed, up to its stop step. Returns the score and the required one."""
    task = run_options.task(name)
    stop = STOP_STEPS[name]
    arguments = [*training(Run(name, PUFFER_MLX, seed), run_options), "--eval-episodes", "0"]
    if stop:
        arguments += ["--stop-at", str(stop)]
    with tempfile.TemporaryDirectory() as folder:
        process([*script("train"), *arguments], cores, Path(folder))
        records = log_of(Path(folder))
    total_steps = max(run["steps"] for run in record["seeds"].values())
    window = 0 if task.in_python else total_steps / CURVE_POINTS
    steps, score = final_score(records, metric(task.environment), window)
    return SeedResult(steps, score, required_score(record, steps, margin))


def summarize(name: str, results: list[SeedResult], fail_fraction: float) -> tuple[bool, str]:
    """Summarize the results of a task's seeds.

    Args:
        name: Name of the task.
        results: Results of the seeds.
        fail_fraction: Fraction of the seeds that may fail.

    Returns:
        True if the task still learns; and a line of text to print.
    """
    failed = sum(not result.ok for result in results)
    ok = failed <= fail_fraction * len(results)
    scores = ", ".join(f"{result.score:,.2f}" for result in results)
    return ok, (
        f"{'ok' if ok else 'FAIL':4} {name}: {scores} after {results[0].steps:,.0f} steps, expected"
        f" at least {results[0].required:,.2f}: {failed} of {len(results)} seeds failed"
    )


def nightly(names: list[str], run_options: RunOptions, margin: float, fail_fraction: float) -> bool:
    """Train tasks again, and print a line for each. Returns True if all still learn as recorded.

    Raises:
        UserError: If a task isn't one of ``STOP_STEPS``, or has no record.
    """
    names = names or list(STOP_STEPS)
    records = load(run_options.out)
    if unknown := [name for name in names if name not in STOP_STEPS]:
        raise UserError(
            f"no nightly task {', '.join(unknown)}", f"choose from {', '.join(STOP_STEPS)}"
        )
    if missing := [name for name in names if (name, PUFFER_MLX) not in records]:
        raise UserError(
            f"no record of {', '.join(missing)} to compare with",
            f"python benchmarks/learning.py {' '.join(missing)}",
        )

    def check_task(name: str, cores: set[int]) -> bool:
        try:
            record = records[name, PUFFER_MLX]
            results = [train_seed(name, seed, record, run_options, margin, cores) for seed in SEEDS]
            ok, line = summarize(name, results, fail_fraction)
            print(line, flush=True)
            return ok
        except UserError as error:
            print(f"FAIL {name}: {error}", flush=True)
            return False

    return all(side_by_side(check_task, names, run_options.jobs, run_options.threads))
