"""Runs of learning, ours and the peers', in separate processes on separate cores."""

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
from learning_record import Run, keep, read, record_path, refuse_other, versions
from learning_tasks import OURS, PARTIAL, PLACE, Task, find, metric

from puffer_mlx.errors import UserError

HERE = Path(__file__).parent
SCRIPTS = HERE.parent / "scripts"
EVALUATED = 10_000  # the seed of the evaluation's first episode
TAKEN = EVALUATED // 1000  # no seed of training, whose environments begin at 1000 x seed
ENOUGH = 0.9  # of a task's steps, for a run to be kept; epochs are whole
PARTS = 40  # of a curve of an environment in C
ELSEWHERE = ("base.seed", "vec.seed", "base.eval_episodes", "base.device", "vec.num_threads")


class Place(NamedTuple):
    """Settings and folder of runs."""

    out: Path
    jobs: int = 1  # at a time
    threads: int = 1  # cores of each
    device: str = "cpu"
    peers: str = ""  # the Python of the peers
    upstream: Path | str = PLACE
    more: tuple[str, ...] = ()  # options of train.py
    again: bool = False  # also what is there
    max_seconds: float = float("inf")  # after which no run is begun
    steps: int = 0  # of each run; 0: the task's

    def task(self, name: str) -> Task:
        """A task as it is run here."""
        task = find(name, self.upstream)
        return task._replace(steps=self.steps) if self.steps else task

    @property
    def told(self) -> "Place":
        """Without a path of this machine."""
        return self._replace(upstream=PLACE)


def about(run: Run, place: Place, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a record that are common to its runs."""
    task = place.task(run.name)
    if run.trainer == OURS:
        found = "PYTHONPATH=benchmarks " if run.name.startswith(PARTIAL) else ""
        words = [f"{found}python scripts/train.py", *training(run, place.told)]
        command = " ".join(words).replace(f"--vec.seed {1000 * run.seed}", "--vec.seed N000")
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


def training(run: Run, place: Place) -> list[str]:
    """The words after `train.py`."""
    task = place.task(run.name)
    seeds = ["--seed", str(run.seed), "--vec.seed", str(1000 * run.seed)]
    none = ["--eval-episodes", "0"] if task.python else []  # evaluate.py follows
    return [*task.commands, "--device", place.device, *none, *place.more, *seeds]


def evaluation(task: Task, device: str) -> list[str]:
    """Return the words after `evaluate.py`: environments with one episode each."""
    count = str(task.episodes)
    words = [task.environment, "--load-model-path", "latest", "--episodes", count]
    words += ["--greedy"] if task.greedy else []
    seeds = ["--device", device, "--seed", "0", "--vec.seed", str(EVALUATED)]
    return [*words, "--vec.total-agents", count, "--vec.backend", task.backend, *seeds]


def script(name: str) -> list[str]:
    return [sys.executable, str(SCRIPTS / f"{name}.py")]


def settings_of(folder: Path) -> dict[str, str]:
    """Return a run's differences from `default.ini`, without seeds and machine."""
    (written, *_) = sorted(folder.glob("checkpoints/*/*/*/config.ini"))
    used, usual = (configparser.ConfigParser(interpolation=None, strict=False) for _ in "12")
    used.read(written), usual.read(HERE.parent / "configs" / "default.ini")
    return {
        f"{section}.{key}": value
        for section in ("base", "vec", "env", "policy", "torch", "train")
        if used.has_section(section)
        for key, value in used.items(section)
        if value != usual.get(section, key, fallback=None)
        and f"{section}.{key}" not in ELSEWHERE
        and key != "env_name"
    }


# ---- ours ----------------------------------------------------------------------------------------


def parts(records: list[dict[str, float]], metric: str, steps: float = 0) -> list[list[float]]:
    """(Steps at the end of a part, mean score of the episodes that ended in it)."""
    trained = [record for record in records if "loss/total" in record]
    edges = np.linspace(0, steps or trained[-1]["agent_steps"], PARTS + 1)[1:]
    total, episodes = np.zeros(PARTS), np.zeros(PARTS)
    for record in trained:
        if record.get("env/n"):
            part = min(int(np.searchsorted(edges, record["agent_steps"])), PARTS - 1)
            total[part] += record[metric] * record["env/n"]
            episodes[part] += record["env/n"]
    return [
        [edge, score / n] for edge, score, n in zip(edges, total, episodes, strict=True) if n > 0
    ]


def ours(run: Run, place: Place, cores: set[int]) -> dict[str, Any]:
    """Train, and evaluate."""
    task = place.task(run.name)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        spent = process([*script("train"), *training(run, place)], cores, here)
        records = log_of(here)
        steps = max(record["agent_steps"] for record in records if "loss/total" in record)
        if steps < ENOUGH * task.steps:
            found = f"the run ended after {steps:,.0f} of {task.steps:,} steps"
            raise UserError(f"{found}: somebody stopped it", "run it again")
        if task.python:
            words = [*script("evaluate"), *evaluation(task, place.device), "--json", "scores.json"]
            process(words, cores, here)
            played = json.loads((here / "scores.json").read_text())["episodes"]
    found = {"steps": steps, "CPU s": round(spent.cpu, 2), "seconds": round(spent.wall, 2)}
    found["versions"] = versions(task.environment)
    if task.python:
        returns = [episode["episode_return"] for episode in played]
        means = [(r["agent_steps"], r["env/score_100"]) for r in records if "env/score_100" in r]
        learned = {"curve": curve(means, steps), "returns": returns}
        return {"score": float(np.mean(returns)), **found, **learned}
    name = metric(task.environment)
    if name not in records[-1] or "loss/total" in records[-1]:
        raise UserError("the evaluation after training told no score", "more steps, or episodes")
    score = {"score": records[-1][name], "episodes": records[-1]["env/n"]}
    return {**score, **found, "curve": parts(records, name)}


def started(run: Run, place: Place, cores: set[int]) -> dict[str, str]:
    """Return a task's settings from a run of one epoch, which also compiles."""
    with tempfile.TemporaryDirectory() as folder:
        words = training(run, place)
        process([*script("train"), *words, "--stop-at", "1"], cores, Path(folder))
        return settings_of(Path(folder))


# ---- peers ---------------------------------------------------------------------------------------


def theirs(run: Run, place: Place, cores: set[int]) -> dict[str, Any]:
    """Train and evaluate a peer."""
    task = place.task(run.name)
    job = Job(
        environment=task.environment.removeprefix("gym:"),
        settings=task.peers[run.trainer],
        steps=task.steps,
        seed=run.seed,
        environments_seed=1000 * run.seed,
        evaluated=EVALUATED,
        episodes=task.episodes,
        greedy=task.greedy,
    )
    words = [place.peers, HERE / "learning_peers.py", json.dumps(job._asdict())]
    with tempfile.TemporaryDirectory() as folder:  # for what MuJoCo writes where it is
        return measured(words, cores, Path(folder))[0]


# ---- all of them ---------------------------------------------------------------------------------


class Work:
    """Runs that are to be made, `place.jobs` at a time."""

    def __init__(self, place: Place, say: Callable[[str], object]) -> None:
        self.place, self._say = place, say
        self.failed: list[str] = []
        self._settings: dict[tuple[str, str], dict[str, Any] | None] = {}
        self._starting: dict[tuple[str, str], threading.Lock] = {}

    def do(self, runs: list[Run]) -> None:
        """Make them in this order, without those that are there."""
        end = time.monotonic() + self.place.max_seconds
        missing = [run for run in runs if self.place.again or not self.is_there(run)]
        self._starting = {(run.name, run.trainer): threading.Lock() for run in missing}

        def one(run: Run, cores: set[int]) -> bool:
            return self._one(run, end, cores)

        late = sum(side_by_side(one, missing, self.place.jobs, self.place.threads))
        if late:
            self._say(f"{late} of {len(missing)} runs weren't begun in time; the same goes on")

    def is_there(self, run: Run) -> bool:
        return str(run.seed) in read(record_path(run, self.place.out))["seeds"]

    def _one(self, run: Run, end: float, cores: set[int]) -> bool:
        """Make a run. Returns True if no time was left."""
        if time.monotonic() > end:
            return True
        label = f"{run.name} {run.trainer} seed {run.seed}"
        try:
            settings = self._start(run, cores)
            if settings is None:  # its first run said why
                return False
            found = (ours if run.trainer == OURS else theirs)(run, self.place, cores)
            found |= {"at a time": self.place.jobs, "cores": self.place.threads}
            keep(run, self.place.out, about(run, self.place, settings), found)
            rate = found["steps"] / found["CPU s"]
            self._say(
                f"{label}: {found['score']:,.2f} after {found['steps']:,.0f} steps,"
                f" {found['CPU s']:,.0f} CPU s, {rate:,.0f} steps per CPU s"
            )
        except Exception as error:  # hours of other runs are to come
            self.failed.append(label)
            self._say(f"{label} failed: {error if isinstance(error, UserError) else repr(error)}")
        return False

    def _start(self, run: Run, cores: set[int]) -> dict[str, Any] | None:
        """Return the settings of a run's task, cached; None if they can't be found."""
        key = (run.name, run.trainer)
        with self._starting[key]:
            if key not in self._settings:
                self._settings[key] = None
                task, path = self.place.task(run.name), record_path(run, self.place.out)
                if run.trainer == OURS:
                    settings = started(run, self.place, cores)
                else:
                    settings = {**task.peers[run.trainer], "steps": task.steps}
                if not self.place.again:
                    refuse_other(path, settings)
                self._settings[key] = settings
        return self._settings[key]


def plan(names: list[str], trainers: list[str], seeds: range) -> list[Run]:
    """Return all runs, seed by seed, so that an early stop leaves equal numbers of seeds.

    Raises:
        UserError: a seed whose environments would begin as those of the evaluation.
    """
    if seeds[0] < 1 or TAKEN in seeds:
        raise UserError(
            f"seeds {seeds[0]} to {seeds[-1]}, expected 1 or more without {TAKEN}: environments of"
            f" training begin at 1000 x seed, those of the evaluation at {EVALUATED}",
            "--seeds and --first-seed",
        )
    return [
        Run(name, trainer, seed)
        for seed in seeds
        for name in names
        for trainer in trainers
        if trainer == OURS or trainer in find(name).peers
    ]
