#!/usr/bin/env python
"""Measure steps and seconds to a score: python benchmarks/gym_learning.py [ENV ...] [--seeds 5].

Trains each of the Gymnasium environments below with its shipped settings (`python scripts/train.py
gym:ENV`) until the mean return of the last 100 training episodes reaches the score; once per seed,
one run after the other, each in a separate process. CPU seconds are those of the entire process,
including imports and all threads. `--peers PYTHON` also runs Stable-Baselines3's PPO, alternating,
with the settings of RL Zoo (`learning_zoo.py`). For final scores see `learning.py`.

puffer_mlx reports episodes once per epoch: each episode counts as the mean of its epoch's episodes.
Further options are passed to `scripts/train.py`, for example `--train.gamma=0.99`.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parent))  # where this file was loaded by its path

from learning_peers import WINDOW, Job, make_trainer, watching
from learning_zoo import SETTINGS

CURVE_POINTS = 20


class Task(NamedTuple):
    """A Gymnasium task: the score to reach, and the number of steps that reaching it may take."""

    score: float
    budget: int  # steps
    peers: int  # steps of the peers' schedules


TASKS = {
    "CartPole-v1": Task(475, 80_000, 100_000),
    "Pendulum-v1": Task(-250, 300_000, 100_000),
    "Acrobot-v1": Task(-100, 200_000, 1_000_000),
}


class Score:
    """Track the mean return of the last episodes, and the step at which it reached a score."""

    def __init__(self, wanted: float) -> None:
        self.wanted, self.reached = wanted, 0
        self.best = -float("inf")
        self.episodes: list[float] = []
        self.curve: list[tuple[int, float]] = []

    def add(self, returns: list[float], steps: int) -> bool:
        """Add returns of ended episodes, and the steps so far.

        Returns True if the run should end.
        """
        self.episodes += returns
        if len(self.episodes) >= WINDOW:
            mean = statistics.fmean(self.episodes[-WINDOW:])
            self.best = max(self.best, mean)
            if mean >= self.wanted and not self.reached:
                self.reached = steps
        if returns:
            self.curve.append((steps, statistics.fmean(returns)))
        return bool(self.reached)

    def record(self, steps: int, packages: tuple[str, ...]) -> dict[str, Any]:
        stride = -(-len(self.curve) // CURVE_POINTS) or 1
        return {
            "reached": self.reached or None,
            "best": self.best if len(self.episodes) >= WINDOW else None,
            "episodes": len(self.episodes),
            "steps": steps,
            "curve": [
                [self.curve[i + len(section) - 1][0], statistics.fmean(mean for _, mean in section)]
                for i in range(0, len(self.curve), stride)
                if (section := self.curve[i : i + stride])
            ],
            "versions": {package: version(package) for package in packages},
        }


# ---- in a separate process -----------------------------------------------------------------------


def ours(name: str, seed: int, limit: int, extra: list[str]) -> dict[str, Any]:
    import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
    from puffer_mlx import config, vec
    from puffer_mlx.system.devices import select_device
    from puffer_mlx.training.trainer import Trainer

    arguments = [*options(seed), *extra]
    settings = config.load(f"gym:{name}", arguments)
    select_device(settings.base.device)
    score = Score(TASKS[name].score)
    with vec.make(settings, 1) as environments:
        trainer = Trainer(settings, environments)
        for logs in trainer:
            returns = [logs.get("env/episode_return", 0.0)] * int(logs.get("env/n", 0))
            if score.add(returns, trainer.global_step) or trainer.global_step >= limit:
                break
        return score.record(trainer.global_step, ("mlx", "gymnasium", "numpy"))


def options(seed: int) -> list[str]:
    """Return the seed and device options with which puffer_mlx trains."""
    return ["--device", "cpu", "--seed", str(seed), "--vec.seed", str(1000 * seed)]


def theirs(name: str, seed: int, limit: int, extra: list[str]) -> dict[str, Any]:
    score, steps = Score(TASKS[name].score), min(limit, TASKS[name].peers)

    def see(now: int, returns: list[float]) -> bool:
        return not score.add(returns, now) and now < limit

    trainer = make_trainer(Job(name, SETTINGS[name], steps, seed, 1000 * seed, 0, 0))
    trainer.learn(steps, callback=watching(see))
    return score.record(trainer.num_timesteps, ("stable-baselines3", "torch", "gymnasium"))


TRAINERS: dict[str, Callable[..., dict[str, Any]]] = {
    "puffer_mlx": ours,
    "stable-baselines3": theirs,
}


# ---- all of them ---------------------------------------------------------------------------------


def measure(trainer: str, name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train once in a separate process. Returns the steps to the score and the process's costs."""
    from learning_processes import measured  # not at the top: the peers' Python hasn't puffer_mlx

    from puffer_mlx.errors import UserError

    python = sys.executable if trainer == "puffer_mlx" else options.peers
    arguments = ["--child", trainer, name, "--first-seed", seed, "--limit", options.limit]
    extra = options.more if trainer == "puffer_mlx" else []
    load, cores = os.getloadavg()[0], {options.core} if options.core >= 0 else set()
    try:
        results, spent = measured([python, __file__, *arguments, *extra], cores)
    except UserError as error:
        raise SystemExit(f"{trainer}, {name}, seed {seed} failed:\n{error}") from None
    return {
        "seed": seed,
        **results,
        "CPU s": round(spent.cpu, 2),
        "wall s": round(spent.wall, 2),
        "load": round(load, 2),
    }


def summary(runs: list[dict[str, Any]], budget: int) -> dict[str, Any]:
    """Return a summary over a trainer's seeds on a task: steps and CPU seconds to the score."""
    reached = [run["reached"] for run in runs]
    every = all(reached)
    return {
        "reached": reached,
        "median": statistics.median(reached) if every else None,
        "CPU s": [run["CPU s"] for run in runs],
        "CPU s, median": statistics.median(run["CPU s"] for run in runs) if every else None,
        "within the budget": every and max(reached) <= budget,
    }


def show(name: str, trainer: str, results: dict[str, Any]) -> None:
    reached = ", ".join(f"{steps:,}" if steps else "-" for steps in results["reached"])
    seconds = ", ".join(f"{s:.1f}" for s in results["CPU s"])
    print(f"{name:14} {trainer:18} steps {reached}   CPU s {seconds}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environments", nargs="*", metavar="ENV", help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, default=5, help="seeds per environment (5)")
    parser.add_argument("--first-seed", type=int, default=1, help="(1)")
    parser.add_argument("--peers", metavar="PYTHON", help="Python with stable-baselines3")
    parser.add_argument("--limit", type=int, default=0, help="maximum steps of a run (no limit)")
    parser.add_argument("--core", type=int, default=-1, help="the core that all run on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options, options.more = parser.parse_known_args()
    if unknown := set(options.environments) - set(TASKS):
        parser.error(f"no task {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    if options.child:
        (name,), limit = options.environments, options.limit or 10**12
        run = TRAINERS[options.child](name, options.first_seed, limit, options.more)
        print("measured " + json.dumps(run))
        return 0
    if options.core >= 0:
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        if options.core not in cores:
            parser.error(f"--core: this process may not use core {options.core}")

    results: dict[str, Any] = {}
    for name in options.environments or TASKS:
        runs = {trainer: [] for trainer in TRAINERS if trainer == "puffer_mlx" or options.peers}
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for trainer, finished in runs.items():
                finished.append(measure(trainer, name, seed, options))
        task = TASKS[name]
        summaries = {trainer: summary(finished, task.budget) for trainer, finished in runs.items()}
        for trainer, row in summaries.items():
            show(name, trainer, row)
        results[name] = {
            "score": task.score,
            "budget, steps": task.budget,
            "stable-baselines3": SETTINGS[name],
            "results": summaries,
            "runs": runs,
        }
    if options.json:
        write(results, options)
    return (
        0 if all(r["results"]["puffer_mlx"]["within the budget"] for r in results.values()) else 1
    )


def write(results: dict[str, Any], args: argparse.Namespace) -> None:
    from puffer_mlx.system.json_text import write_json  # the peers' Python hasn't it

    arguments = [*args.environments, "--seeds", args.seeds, "--first-seed", args.first_seed]
    arguments += ["--peers PYTHON"] if args.peers else []
    record = {
        "command": " ".join(
            map(str, ["python benchmarks/gym_learning.py", *arguments, *args.more])
        ),
        "ours": " ".join(["python scripts/train.py gym:ENV", *options(1), *args.more]),
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "one core": args.core >= 0,
        "tasks": results,
    }
    write_json(record, args.json)


if __name__ == "__main__":
    sys.exit(main())
