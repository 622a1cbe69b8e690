"""Train the tasks of the learning benchmarks, in separate processes on separate cores."""

import configparser
import datetime
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from learning_peers import Job, curve
from learning_processes import log_of, measured, process, side_by_side
from learning_record import Run, check_settings, keep, read, record_path, versions
from learning_tasks import PARTIAL, PUFFER_MLX, RECORDED_UPSTREAM, Task, find, metric

from puffer_mlx.errors import UserError

HERE = Path(__file__).parent
SCRIPTS = HERE.parent / "scripts"
EVALUATION_SEED = 10_000  # of the evaluation's first episode
RESERVED_SEED = EVALUATION_SEED // 1000  # not for training, whose environments use 1000 x seed
MIN_COMPLETED = 0.9  # fraction of a task's steps that a valid run has at least
CURVE_POINTS = 40  # of an environment in C
UNRECORDED_KEYS = ("base.seed", "vec.seed", "base.eval_episodes", "base.device", "vec.num_threads")


class RunOptions(NamedTuple):
    """Options of the learning benchmark for all runs, such as cores per run and output folder."""

    out: Path
    jobs: int = 1  # runs at a time
    threads: int = 1  # cores per run
    device: str = "cpu"
    peers: str = ""  # Python of the other trainers
    upstream: Path | str = RECORDED_UPSTREAM
    more: tuple[str, ...] = ()  # options of train.py
    again: bool = False  # repeat stored runs
    max_seconds: float = float("inf")  # after which no run begins
    steps: int = 0  # per run; 0: the task's

    def task(self, name: str) -> Task:
        """Return a learning task by its name, with the number of steps that these options set."""
        task = find(name, self.upstream)
        return task._replace(steps=self.steps) if self.steps else task

    @property
    def without_paths(self) -> "RunOptions":
        """Copy of these options without paths of this machine, to write into a record."""
        return self._replace(upstream=RECORDED_UPSTREAM)


def common_facts(run: Run, run_options: RunOptions, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what a record stores once for all its runs: command, machine and settings."""
    task = run_options.task(run.name)
    if run.trainer == PUFFER_MLX:
        variables = "PYTHONPATH=benchmarks " if run.name.startswith(PARTIAL) else ""
        arguments = training(run, run_options.without_paths)
        arguments = [f"{variables}python scripts/train.py", *arguments]
        command = " ".join(arguments).replace(f"--vec.seed {1000 * run.seed}", "--vec.seed N000")
        command = command.replace(f"--seed {run.seed} ", "--seed N ")
        measure = metric(task.environment)
    else:
        command = f"learning_peers.py of {json.dumps(task.peers[run.trainer])}"
        measure = "env/episode_return"
    return {
        "task": run.name,
        "trainer": run.trainer,
        "metric": measure,
        "command": command,
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "settings": settings,
    }


def training(run: Run, run_options: RunOptions) -> list[str]:
    """Return the arguments with which `train.py` trains a task with a seed."""
    task = run_options.task(run.name)
    seeds = ["--seed", str(run.seed), "--vec.seed", str(1000 * run.seed)]
    no_evaluation = ["--eval-episodes", "0"] if task.in_python else []  # evaluate.py follows
    return [
        *task.train_arguments,
        "--device",
        run_options.device,
        *no_evaluation,
        *run_options.more,
        *seeds,
    ]


def evaluation(task: Task, device: str) -> list[str]:
    """Return the arguments with which `evaluate.py` plays one episode per environment."""
    count = str(task.episodes)
    arguments = [task.environment, "--load-model-path", "latest", "--episodes", count]
    arguments += ["--greedy"] if task.greedy else []
    seeds = ["--device", device, "--seed", "0", "--vec.seed", str(EVALUATION_SEED)]
    return [*arguments, "--vec.total-agents", count, "--vec.backend", task.backend, *seeds]


def script(name: str) -> list[str]:
    return [sys.executable, str(SCRIPTS / f"{name}.py")]


def settings_of(folder: Path) -> dict[str, str]:
    """Return a run's settings that differ from `default.ini`, without seeds and machine."""
    (written, *_) = sorted(folder.glob("checkpoints/*/*/*/config.ini"))
    used, usual = (configparser.ConfigParser(interpolation=None, strict=False) for _ in "12")
    used.read(written), usual.read(HERE.parent / "configs" / "default.ini")
    return {
        f"{section}.{key}": value
        for section in ("base", "vec", "env", "policy", "torch", "train")
        if used.has_section(section)
        for key, value in used.items(section)
        if value != usual.get(section, key, fallback=None)
        and f"{section}.{key}" not in UNRECORDED_KEYS
        and key != "env_name"
    }


# ---- ours ----------------------------------------------------------------------------------------


def section_scores(
    records: list[dict[str, float]], metric: str, steps: float = 0
) -> list[list[float]]:
    """Return a learning curve from a run's log, with ``CURVE_POINTS`` equal sections.

    Args:
        records: Log of the run.
        metric: Key of the score.
        steps: Steps of the run. 0: the last record's.

    Returns:
        For each section with ended episodes: its last step, and their mean score.
    """
    trained = [record for record in records if "loss/total" in record]
    edges = np.linspace(0, steps or trained[-1]["agent_steps"], CURVE_POINTS + 1)[1:]
    total, episodes = np.zeros(CURVE_POINTS), np.zeros(CURVE_POINTS)
    for record in trained:
        if record.get("env/n"):
            section = min(int(np.searchsorted(edges, record["agent_steps"])), CURVE_POINTS - 1)
            total[section] += record[metric] * record["env/n"]
            episodes[section] += record["env/n"]
    return [
        [edge, score / n] for edge, score, n in zip(edges, total, episodes, strict=True) if n > 0
    ]


def run_puffer_mlx(run: Run, run_options: RunOptions, cores: set[int]) -> dict[str, Any]:
    """Train and evaluate a task with puffer_mlx. Returns the results: scores, costs and curve."""
    task = run_options.task(run.name)
    with tempfile.TemporaryDirectory() as folder:
        working_folder = Path(folder)
        spent = process([*script("train"), *training(run, run_options)], cores, working_folder)
        records = log_of(working_folder)
        steps = max(record["agent_steps"] for record in records if "loss/total" in record)
        if steps < MIN_COMPLETED * task.steps:
            message = f"the run was stopped after {steps:,.0f} of {task.steps:,} steps"
            raise UserError(message, "run it again")
        if task.in_python:
            arguments = [*evaluation(task, run_options.device), "--json", "scores.json"]
            process([*script("evaluate"), *arguments], cores, working_folder)
            played = json.loads((working_folder / "scores.json").read_text())["episodes"]
    results = {"steps": steps, "CPU s": round(spent.cpu, 2), "seconds": round(spent.wall, 2)}
    results["versions"] = versions(task.environment)
    if task.in_python:
        returns = [episode["episode_return"] for episode in played]
        means = [(r["agent_steps"], r["env/score_100"]) for r in records if "env/score_100" in r]
        learned = {"curve": curve(means, steps), "returns": returns}
        return {"score": float(np.mean(returns)), **results, **learned}
    name = metric(task.environment)
    if name not in records[-1] or "loss/total" in records[-1]:
        raise UserError("the evaluation reported no score", "use more steps, or more episodes")
    score = {"score": records[-1][name], "episodes": records[-1]["env/n"]}
    return {**score, **results, "curve": section_scores(records, name)}


def started(run: Run, run_options: RunOptions, cores: set[int]) -> dict[str, str]:
    """Train a task for one epoch. Returns its settings that differ from the defaults.

    Compiles the kernels for later runs, too.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = training(run, run_options)
        process([*script("train"), *arguments, "--stop-at", "1"], cores, Path(folder))
        return settings_of(Path(folder))


# ---- peers ---------------------------------------------------------------------------------------


def run_other_trainer(run: Run, run_options: RunOptions, cores: set[int]) -> dict[str, Any]:
    """Train and evaluate a task with another trainer.

    Returns the results: scores, costs and curve.
    """
    task = run_options.task(run.name)
    job = Job(
        environment=task.environment.removeprefix("gym:"),
        settings=task.peers[run.trainer],
        steps=task.steps,
        seed=run.seed,
        environments_seed=1000 * run.seed,
        evaluated=EVALUATION_SEED,
        episodes=task.episodes,
        greedy=task.greedy,
    )
    arguments = [run_options.peers, HERE / "learning_peers.py", json.dumps(job._asdict())]
    with tempfile.TemporaryDirectory() as folder:  # MuJoCo writes into the working directory
        return measured(arguments, cores, Path(folder))[0]


# ---- all of them ---------------------------------------------------------------------------------


class Work:
    """Train the benchmark's missing runs, several at a time, and store their results."""

    def __init__(self, run_options: RunOptions, say: Callable[[str], object]) -> None:
        self.run_options, self._say = run_options, say
        self.failed: list[str] = []
        self._settings: dict[tuple[str, str], dict[str, Any] | None] = {}
        self._starting: dict[tuple[str, str], threading.Lock] = {}

    def do(self, runs: list[Run]) -> None:
        """Train the runs that aren't stored yet, in this order, until the time limit."""
        end = time.monotonic() + self.run_options.max_seconds
        missing = [run for run in runs if self.run_options.again or not self.is_stored(run)]
        self._starting = {(run.name, run.trainer): threading.Lock() for run in missing}

        def one(run: Run, cores: set[int]) -> bool:
            return self._one(run, end, cores)

        not_begun = sum(side_by_side(one, missing, self.run_options.jobs, self.run_options.threads))
        if not_begun:
            self._say(
                f"{not_begun} of {len(missing)} runs didn't begin in time; repeat the command"
            )

    def is_stored(self, run: Run) -> bool:
        return str(run.seed) in read(record_path(run, self.run_options.out))["seeds"]

    def _one(self, run: Run, end: float, cores: set[int]) -> bool:
        """Train one run and store its results.

        Returns True if no time was left to start the run.
        """
        if time.monotonic() > end:
            return True
        label = f"{run.name} {run.trainer} seed {run.seed}"
        try:
            settings = self._start(run, cores)
            if settings is None:  # reported by the task's first run
                return False
            results = (run_puffer_mlx if run.trainer == PUFFER_MLX else run_other_trainer)(
                run, self.run_options, cores
            )
            results |= {"at a time": self.run_options.jobs, "cores": self.run_options.threads}
            keep(run, self.run_options.out, common_facts(run, self.run_options, settings), results)
            rate = results["steps"] / results["CPU s"]
            self._say(
                f"{label}: {results['score']:,.2f} after {results['steps']:,.0f} steps,"
                f" {results['CPU s']:,.0f} CPU s, {rate:,.0f} steps per CPU s"
            )
        except Exception as error:  # other runs, which may take hours, continue
            self.failed.append(label)
            self._say(f"{label} failed: {error if isinstance(error, UserError) else repr(error)}")
        return False

    def _start(self, run: Run, cores: set[int]) -> dict[str, Any] | None:
        """Return the settings of a run's task, or None if the task can't be started.

        The first call trains one epoch to get the settings; later calls return the same.
        """
        key = (run.name, run.trainer)
        with self._starting[key]:
            if key not in self._settings:
                self._settings[key] = None
                task, path = self.run_options.task(run.name), record_path(run, self.run_options.out)
                if run.trainer == PUFFER_MLX:
                    settings = started(run, self.run_options, cores)
                else:
                    settings = {**task.peers[run.trainer], "steps": task.steps}
                if not self.run_options.again:
                    check_settings(path, settings)
                self._settings[key] = settings
        return self._settings[key]


def plan(names: list[str], trainers: list[str], seeds: range) -> list[Run]:
    """Return the list of all training runs, ordered by seed.

    An early stop then leaves equal numbers of seeds.

    Raises:
        UserError: If a seed would give training the environments of the evaluation.
    """
    if seeds[0] < 1 or RESERVED_SEED in seeds:
        raise UserError(
            f"seeds {seeds[0]} to {seeds[-1]}, expected 1 or more without {RESERVED_SEED}:"
            f" environment seeds are 1000 x seed, and the evaluation's begin at {EVALUATION_SEED}",
            "change --seeds or --first-seed",
        )
    return [
        Run(name, trainer, seed)
        for seed in seeds
        for name in names
        for trainer in trainers
        if trainer == PUFFER_MLX or trainer in find(name).peers
    ]
