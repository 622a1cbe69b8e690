#!/usr/bin/env python
"""Steps and seconds to a score: python benchmarks/gym_learning.py [ENV ...] [--seeds 5] [--help].

Each of Gymnasium's environments below is trained with the settings that come with it
(`python scripts/train.py gym:ENV`, `configs/python.ini` and `configs/gym/ENV.ini`) until the mean
return of the last 100 finished training episodes reaches the score, once for each seed, one run
after the other, each in a process of its own. CPU seconds are the process's from its start to its
end, imports and all threads included. `--peers PYTHON` runs Stable-Baselines3's PPO as well, in
turns, with the settings of RL Zoo.

Ours reports episodes an epoch at a time: each counts as the mean of those that ended in its epoch.
Other options are `scripts/train.py`'s, for ours: `--train.gamma=0.99`.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

WINDOW = 100  # episodes
PARTS = 20  # of a run, in its curve


class Task(NamedTuple):
    """A score, and how long it may take."""

    score: float
    budget: int  # steps
    zoo: dict[str, Any]  # RL Zoo's settings for PPO; "lin" falls to 0 over `steps`


TASKS = {
    "CartPole-v1": Task(
        475,
        80_000,
        {
            "steps": 100_000,
            "n_envs": 8,
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "learning_rate": "lin_0.001",
            "clip_range": "lin_0.2",
        },
    ),
    "Pendulum-v1": Task(
        -250,
        300_000,
        {
            "steps": 100_000,
            "n_envs": 4,
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "learning_rate": 1e-3,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
    ),
    "Acrobot-v1": Task(
        -100,
        200_000,
        {
            "steps": 1_000_000,
            "n_envs": 16,
            "n_steps": 256,
            "gae_lambda": 0.94,
            "n_epochs": 4,
            "normalize": True,
        },
    ),
}


class Score:
    """The mean of the last episodes, and when it first was high enough."""

    def __init__(self, wanted: float) -> None:
        self.wanted, self.reached = wanted, 0
        self.best = -float("inf")
        self.episodes: list[float] = []
        self.curve: list[tuple[int, float]] = []

    def add(self, returns: list[float], steps: int) -> bool:
        """Episodes that ended, after so many steps of all environments; whether that is enough."""
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
        stride = -(-len(self.curve) // PARTS) or 1
        return {
            "reached": self.reached or None,
            "best": self.best if len(self.episodes) >= WINDOW else None,
            "episodes": len(self.episodes),
            "steps": steps,
            "curve": [
                [self.curve[i + len(part) - 1][0], statistics.fmean(mean for _, mean in part)]
                for i in range(0, len(self.curve), stride)
                if (part := self.curve[i : i + stride])
            ],
            "versions": {package: version(package) for package in packages},
        }


# ---- in a process of its own ---------------------------------------------------------------------


def ours(name: str, seed: int, limit: int, more: list[str]) -> dict[str, Any]:
    import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
    from puffer_mlx import config, vec
    from puffer_mlx.system.devices import select_device
    from puffer_mlx.training.trainer import Trainer

    words = [*options(seed), *more]
    settings = config.load(f"gym:{name}", words)
    select_device(settings.base.device)
    score = Score(TASKS[name].score)
    with vec.make(settings, 1) as environments:
        trainer = Trainer(settings, environments)
        for logs in trainer:
            ended = [logs.get("env/episode_return", 0.0)] * int(logs.get("env/n", 0))
            if score.add(ended, trainer.global_step) or trainer.global_step >= limit:
                break
        return score.record(trainer.global_step, ("mlx", "gymnasium", "numpy"))


def options(seed: int) -> list[str]:
    """What a run of ours is given on the command line."""
    return ["--device", "cpu", "--seed", str(seed), "--vec.seed", str(1000 * seed)]


def theirs(name: str, seed: int, limit: int, more: list[str]) -> dict[str, Any]:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    score, given = Score(TASKS[name].score), dict(TASKS[name].zoo)
    steps, agents = given.pop("steps"), given.pop("n_envs")

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            infos = self.locals["infos"]
            ended = [float(info["episode"]["r"]) for info in infos if "episode" in info]
            return not score.add(ended, self.num_timesteps) and self.num_timesteps < limit

    environments: Any = make_vec_env(f"{name}", n_envs=agents, seed=1000 * seed)
    if given.pop("normalize", False):
        environments = VecNormalize(environments, gamma=given.get("gamma", 0.99))
    settings = {key: _schedule(value) for key, value in given.items()}
    trainer = PPO("MlpPolicy", environments, seed=seed, device="cpu", **settings)
    trainer.learn(min(limit, steps), callback=Watch())
    return score.record(trainer.num_timesteps, ("stable-baselines3", "torch", "gymnasium"))


def _schedule(value: Any) -> Any:
    """A number that is written as RL Zoo writes it; ``lin_x`` falls from x to 0."""
    if not isinstance(value, str):
        return value
    first = float(value.removeprefix("lin_"))

    def falling(left: float) -> float:
        return left * first

    return falling


TRAINERS: dict[str, Callable[..., dict[str, Any]]] = {
    "puffer_mlx": ours,
    "stable-baselines3": theirs,
}


# ---- all of them ---------------------------------------------------------------------------------


def measure(trainer: str, name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run and what its process cost."""
    python = sys.executable if trainer == "puffer_mlx" else options.peers
    words = ["--child", trainer, name, "--first-seed", seed, "--limit", options.limit]
    more = options.more if trainer == "puffer_mlx" else []
    command = [python, __file__, *map(str, words), *more]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    load, began = os.getloadavg()[0], time.perf_counter()
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **threads}
    )
    bind(child.pid, options.core)
    out, errors = child.stdout.read(), child.stderr.read()  # type: ignore
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    lines = [line for line in out.decode().splitlines() if line.startswith("measured ")]
    if child.returncode or not lines:
        raise SystemExit(f"{trainer}, {name}, seed {seed} failed:\n{errors.decode()[-2000:]}")
    return {
        "seed": seed,
        **json.loads(lines[-1].removeprefix("measured ")),
        "CPU s": round(usage.ru_utime + usage.ru_stime, 2),
        "wall s": round(time.perf_counter() - began, 2),
        "load": round(load, 2),
    }


def bind(process: int, core: int) -> None:
    if core >= 0:
        os.sched_setaffinity(process, {core})


def summary(runs: list[dict[str, Any]], budget: int) -> dict[str, Any]:
    """Of all seeds of a trainer on a task."""
    reached = [run["reached"] for run in runs]
    every = all(reached)
    return {
        "reached": reached,
        "median": statistics.median(reached) if every else None,
        "CPU s": [run["CPU s"] for run in runs],
        "CPU s, median": statistics.median(run["CPU s"] for run in runs) if every else None,
        "within the budget": every and max(reached) <= budget,
    }


def show(name: str, trainer: str, found: dict[str, Any]) -> None:
    reached = ", ".join(f"{steps:,}" if steps else "-" for steps in found["reached"])
    seconds = ", ".join(f"{s:.1f}" for s in found["CPU s"])
    print(f"{name:14} {trainer:18} steps {reached}   CPU s {seconds}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environments", nargs="*", metavar="ENV", help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--first-seed", type=int, default=1, help="(1)")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter with stable-baselines3")
    parser.add_argument("--limit", type=int, default=0, help="steps of a run at most (all)")
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
            for trainer, done in runs.items():
                done.append(measure(trainer, name, seed, options))
        task = TASKS[name]
        found = {trainer: summary(done, task.budget) for trainer, done in runs.items()}
        for trainer, row in found.items():
            show(name, trainer, row)
        results[name] = {
            "score": task.score,
            "budget, steps": task.budget,
            "stable-baselines3": task.zoo,
            "results": found,
            "runs": runs,
        }
    if options.json:
        write(results, options)
    return (
        0 if all(r["results"]["puffer_mlx"]["within the budget"] for r in results.values()) else 1
    )


def write(results: dict[str, Any], given: argparse.Namespace) -> None:
    from puffer_mlx.system.files import publish  # not at the top: the peers' Python hasn't it

    words = [*given.environments, "--seeds", given.seeds, "--first-seed", given.first_seed]
    words += ["--peers PYTHON"] if given.peers else []
    record = {
        "command": " ".join(map(str, ["python benchmarks/gym_learning.py", *words, *given.more])),
        "ours": " ".join(["python scripts/train.py gym:ENV", *options(1), *given.more]),
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "one core": given.core >= 0,
        "tasks": results,
    }
    with publish(given.json) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
