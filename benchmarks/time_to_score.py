#!/usr/bin/env python
"""Measure the time to a score: python benchmarks/time_to_score.py breakout-fast breakout [--help].

Trains each configuration (`scripts/train.py NAME`, complete runs) with each seed, alternating, one
run at a time. *Reached* is the time when the mean of the last 100 training episodes first reached
the score, in steps and in seconds since training began, including compiling. Also prints the
seconds of training and of the command, and the score of the final weights in the evaluation after
training. Further options are passed to `train.py`, for example `--device cpu`.
"""

import argparse
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from learning_processes import log_of
from learning_record import versions
from learning_tasks import metric

from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.errors import UserError
from puffer_mlx.system.json_text import write_json

TRAIN = Path(__file__).parents[1] / "scripts" / "train.py"
SCORED_EPISODES = 100  # over which the score is averaged


def first_reached(
    records: list[dict[str, float]], name: str, score: float
) -> dict[str, float] | None:
    """Return the first record at which the mean of the last 100 episodes reached the score.

    Args:
        records: Records of the training epochs.
        name: Name of the score in records.
        score: Score to reach.
    """
    recent: list[tuple[float, float]] = []  # mean score and number of episodes, the newest last
    for record in records:
        if not record.get("env/n"):
            continue
        recent.append((record[name], record["env/n"]))
        while sum(n for _, n in recent[1:]) >= SCORED_EPISODES:
            del recent[0]
        count = sum(n for _, n in recent)
        if count >= SCORED_EPISODES and sum(mean * n for mean, n in recent) / count >= score:
            return record
    return None


def run(task: str, seed: int, score: float, more: list[str]) -> dict[str, Any]:
    """Train a configuration once, completely. Returns the times to a score, and the scores."""
    arguments = [task, "--seed", str(seed), "--vec.seed", str(1000 * seed), *more]
    load, began = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(TRAIN), *arguments]
        process = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        if process.returncode:
            output = process.stderr.strip()[-2000:]
            raise UserError(f"{task} failed:\n{output}", "mend the cause that train.py printed")
        records = log_of(Path(folder))
    name = metric(task)
    training = [record for record in records if "SPS" in record]
    first = first_reached(training, name, score)
    return {
        "seed": seed,
        "load before": load,
        "reached, s": first["uptime"] if first else None,
        "reached, steps": first["agent_steps"] if first else None,
        "training, s": training[-1]["uptime"],
        "command, s": seconds,
        "SPS": statistics.median(record["SPS"] for record in training),
        "steps": training[-1]["agent_steps"],
        "evaluation": records[-1][name] if "SPS" not in records[-1] else None,
    }


def describe_run(task: str, row: dict[str, Any]) -> str:
    """Describe the results of a run in one line."""
    seconds = row["reached, s"]
    when = (
        f"after {seconds:6.1f} s, {row['reached, steps']:,} steps" if seconds else "never reached"
    )
    evaluation = "-" if row["evaluation"] is None else f"{row['evaluation']:.1f}"
    return (
        f"{task:18} seed {row['seed']}: {when}; whole run {row['training, s']:.1f} s"
        f" ({row['command, s']:.1f} s with start and evaluation), {row['SPS']:,.0f} steps/s,"
        f" evaluated {evaluation}; load {row['load before']:.1f}"
    )


@with_exit_code
def main(argv: list[str]) -> None:
    """Train the requested configurations with all seeds, and write the record of their times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", metavar="NAME", help="configuration, as for train.py")
    parser.add_argument("--score", type=float, default=860.0, help="score to reach (860)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds per configuration (3)")
    parser.add_argument("--first-seed", type=int, default=1, help="first seed (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to a file")
    options, more = parser.parse_known_args(argv)
    runs: dict[str, list[dict[str, Any]]] = {task: [] for task in options.tasks}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for task in options.tasks:
            runs[task].append(run(task, seed, options.score, more))
            print(describe_run(task, runs[task][-1]), flush=True)
    record = {
        "command": " ".join(["python benchmarks/time_to_score.py", *argv]),
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "score": options.score,
        "versions": {task: versions(task) for task in options.tasks},
        "runs": runs,
    }
    if options.json:
        write_json(record, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
