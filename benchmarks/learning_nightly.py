"""Verify that tasks still learn as recorded, in half an hour of a core.

Some tasks of `learning_tasks.py`, the long ones stopped early with their schedules unchanged, with
seeds that the records don't have. The mean of the last 100 training episodes (in C: of the episodes
that ended in the last 40th of the whole run's steps) is compared with the task's record at the same
step: with the lowest seed's, less a part of what was learned since the curve's first point. So a
record that is made again with better settings raises what is expected. A task fails if more than a
share of its seeds do.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from learning_processes import log_of, process, side_by_side
from learning_record import Run
from learning_runs import PARTS, Place, script, training
from learning_table import load
from learning_tasks import OURS, metric

from puffer_mlx.errors import UserError

MARGIN = 0.2  # of what was learned
SEEDS = 7, 8, 9
STEPS = {  # task -> the step to stop at; 0: its own number
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
    """The score of a task's seed, and the required one."""

    steps: float
    found: float
    least: float

    @property
    def ok(self) -> bool:
        return self.found >= self.least


def least(record: Any, steps: float, margin: float) -> float:
    """The lowest seed's score at a step, less a part of what was learned until there."""
    curves = [np.array(run["curve"]) for run in record["seeds"].values() if run["curve"]]
    low = min(float(np.interp(steps, curve[:, 0], curve[:, 1])) for curve in curves)
    first = statistics.fmean(float(curve[0, 1]) for curve in curves)
    return low - margin * abs(low - first)


def reached(records: list[dict[str, float]], measured: str, window: float) -> tuple[float, float]:
    """The last step, and the score there: of a Python environment without a window of steps.

    Raises:
        UserError: no episode ended.
    """
    trained = [record for record in records if "loss/total" in record]
    last = trained[-1]["agent_steps"]
    if not window:
        scores = [record["env/score_100"] for record in trained if "env/score_100" in record]
        if scores:
            return last, scores[-1]
    ended = [r for r in trained if r.get("env/n") and r["agent_steps"] > last - window]
    if not ended:
        raise UserError("no episode ended", "more steps")
    count = sum(record["env/n"] for record in ended)
    return last, sum(record[measured] * record["env/n"] for record in ended) / count


def night(name: str, seed: int, record: Any, place: Place, margin: float, cores: set[int]) -> Night:
    """Train a task's first part."""
    task, stop = place.task(name), STEPS[name]
    words = [*training(Run(name, OURS, seed), place), "--eval-episodes", "0"]
    with tempfile.TemporaryDirectory() as folder:
        stopping = ["--stop-at", str(stop)] if stop else []
        process([*script("train"), *words, *stopping], cores, Path(folder))
        records = log_of(Path(folder))
    whole = max(run["steps"] for run in record["seeds"].values())
    window = 0 if task.python else whole / PARTS
    steps, found = reached(records, metric(task.environment), window)
    return Night(steps, found, least(record, steps, margin))


def line(name: str, results: list[Night], share: float) -> tuple[bool, str]:
    """Return True if few enough seeds of a task failed, and a text."""
    failed = sum(not result.ok for result in results)
    ok = failed <= share * len(results)
    scores = ", ".join(f"{result.found:,.2f}" for result in results)
    return ok, (
        f"{'ok' if ok else 'FAIL':4} {name}: {scores} after {results[0].steps:,.0f} steps, expected"
        f" at least {results[0].least:,.2f}: {failed} of {len(results)} seeds failed"
    )


def nightly(names: list[str], place: Place, margin: float, share: float) -> bool:
    """Return True if all tasks still learn. Prints a line for each; a share of its seeds may fail.

    Raises:
        UserError: a task isn't one of these, or has no record.
    """
    names, records = names or list(STEPS), load(place.out)
    if unknown := [name for name in names if name not in STEPS]:
        raise UserError(f"{', '.join(unknown)} is none of the night's: {', '.join(STEPS)}")
    if missing := [name for name in names if (name, OURS) not in records]:
        raise UserError(
            f"no record of {', '.join(missing)} to compare with",
            f"python benchmarks/learning.py {' '.join(missing)}",
        )

    def one(name: str, cores: set[int]) -> bool:
        try:
            record = records[name, OURS]
            results = [night(name, seed, record, place, margin, cores) for seed in SEEDS]
            ok, words = line(name, results, share)
            print(words, flush=True)
            return ok
        except UserError as error:
            print(f"FAIL {name}: {error}", flush=True)
            return False

    return all(side_by_side(one, names, place.jobs, place.threads))
