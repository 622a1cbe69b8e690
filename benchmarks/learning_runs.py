"""Runs of learning, each in processes and on cores of its own, and the records they are kept in.

A record is a file for a task and a trainer, `TASK.json` of ours and `TASK.TRAINER.json` of a peer.
It says what was run and where; `settings` is what differs from default.ini, or from
Stable-Baselines3's defaults; `seeds` has a run for each seed:

    score       mean of `returns`; in C that of the evaluation after training, of `episodes`
    steps       of training
    curve       [steps, mean return of the last 100 episodes] at 20 points; in C [steps, mean score
                of the episodes that ended in it] of 40 parts
    CPU s       user and system, of `train.py` from its start to its end, threads and children
                included; of a peer without its imports
    seconds     that it took
    returns     of the evaluation's episodes: most probable actions, statistics as training left
                them, episode k of an environment seeded with 10,000 + k
    at a time   so many runs were made beside each other, each on so many `cores`

Files are published by rename after each run: one that is killed loses nothing but what it is at.
"""

import configparser
import datetime
import fcntl
import json
import os
import platform
import queue
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from learning_peers import Job, curve
from learning_tasks import OURS, PARTIAL, PLACE, Task, find, metric, stem

from puffer_mlx.errors import UserError
from puffer_mlx.system.files import publish

HERE = Path(__file__).parent
SCRIPTS = HERE.parent / "scripts"
EVALUATED = 10_000  # the seed of the evaluation's first episode
LAST_SEED = EVALUATED // 1000 - 1  # of training, whose environments begin at 1000 x seed
PARTS = 40  # of a curve of an environment in C
ELSEWHERE = ("base.seed", "vec.seed", "base.eval_episodes", "base.device", "vec.num_threads")


class Run(NamedTuple):
    """One seed of a trainer on a task."""

    name: str
    trainer: str
    seed: int


class Place(NamedTuple):
    """How runs are made, and where they are kept."""

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


# ---- records -------------------------------------------------------------------------------------


def record_path(run: Run, out: Path) -> Path:
    return out / f"{stem(run.name, run.trainer)}.json"


def read(path: Path) -> dict[str, Any]:
    """A record; without runs if there is none."""
    return json.loads(path.read_text()) if path.is_file() else {"seeds": {}}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else changes records of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def about(run: Run, place: Place) -> dict[str, Any]:
    """What a record says of all of its runs."""
    task = place.task(run.name)
    if run.trainer == OURS:
        found = "PYTHONPATH=benchmarks " if run.name.startswith(PARTIAL) else ""
        words = [f"{found}python scripts/train.py", *training(run, place.told)]
        command = " ".join(words).replace(f"--vec.seed {1000 * run.seed}", "--vec.seed N000")
        command = command.replace(f"--seed {run.seed} ", "--seed N ")
        packages, measure = ("mlx", "numpy"), metric(task.environment)
    else:
        command = f"learning_peers.py of {json.dumps(task.peers[run.trainer])}"
        packages, measure = (), "env/episode_return"
    return {
        "task": run.name,
        "trainer": run.trainer,
        "metric": measure,
        "command": command,
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "versions": {package: version(package) for package in packages},
    }


def keep(run: Run, place: Place, settings: dict[str, Any], found: dict[str, Any]) -> None:
    """Add a run to its record."""
    path = record_path(run, place.out)
    beside = {"at a time": place.jobs, "cores": place.threads}
    with locked(place.out):
        seeds = read(path)["seeds"] if same(path, settings) else {}
        seeds = {**seeds, str(run.seed): {**found, **beside}}
        seeds = dict(sorted(seeds.items(), key=lambda item: int(item[0])))
        record = {**about(run, place), "settings": settings, "seeds": seeds}
        with publish(path) as temporary:
            temporary.write_text(text_of(record))


def text_of(record: dict[str, Any]) -> str:
    """JSON with a list of numbers in one line."""
    text = json.dumps(record, indent=1) + "\n"
    return re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), text)


def same(path: Path, settings: dict[str, Any]) -> bool:
    """Whether a record is of these settings, or there is none."""
    return not path.is_file() or read(path).get("settings") == settings


def refuse_other(path: Path, settings: dict[str, Any]) -> None:
    """Raise a UserError if a record is of other settings."""
    if not same(path, settings):
        old = read(path).get("settings") or {}
        names = sorted(k for k in {*old, *settings} if old.get(k) != settings.get(k))
        told = ", ".join(f"{k} {old.get(k, '-')}, now {settings.get(k, '-')}" for k in names[:5])
        raise UserError(
            f"{path.name} was made with other settings: {told}",
            "--again replaces it; --out FOLDER keeps both",
        )


# ---- processes -----------------------------------------------------------------------------------


class Spent(NamedTuple):
    """What a process printed and cost."""

    out: str
    cpu: float  # seconds, user and system, with its children
    wall: float


def process(words: list[str], cores: set[int], cwd: Path | None = None) -> Spent:
    """Run a command to its end on some cores; none: on all.

    Raises:
        UserError: it fails; with its last words.
    """
    threads = str(len(cores) or 1)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        modules = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, **dict.fromkeys(names, threads), "PYTHONPATH": modules}
        child = subprocess.Popen(words, cwd=cwd, stdout=out, stderr=errors, env=environment)
        if cores:
            os.sched_setaffinity(child.pid, cores)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - began
        out.seek(0), errors.seek(0)
        if child.returncode:
            last = errors.read().decode(errors="replace").strip()[-1500:]
            raise UserError(f"exit status {child.returncode}: {last}", shlex.join(words[1:]))
        return Spent(out.read().decode(), usage.ru_utime + usage.ru_stime, wall)


def training(run: Run, place: Place) -> list[str]:
    """The words after `train.py`."""
    task = place.task(run.name)
    seeds = ["--seed", str(run.seed), "--vec.seed", str(1000 * run.seed)]
    none = ["--eval-episodes", "0"] if task.python else []  # evaluate.py follows
    return [*task.commands, "--device", place.device, *none, *place.more, *seeds]


def evaluation(task: Task) -> list[str]:
    """The words after `evaluate.py`: so many environments with one episode each."""
    count = str(task.episodes)
    words = [task.environment, "--load-model-path", "latest", "--greedy", "--episodes", count]
    seeds = ["--seed", "0", "--vec.seed", str(EVALUATED)]
    return [*words, "--vec.total-agents", count, "--vec.backend", task.backend, *seeds]


def script(name: str) -> list[str]:
    return [sys.executable, str(SCRIPTS / f"{name}.py")]


def log_of(folder: Path) -> list[dict[str, float]]:
    """The records of the one run in a folder."""
    (log,) = folder.glob("logs/*/*.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


def settings_of(folder: Path) -> dict[str, str]:
    """What the one run in a folder has that isn't `default.ini`'s, seeds and machine aside."""
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
        if task.python:
            words = [*script("evaluate"), *evaluation(task), "--json", "scores.json"]
            process(words, cores, here)
            played = json.loads((here / "scores.json").read_text())["episodes"]
    found = {"steps": steps, "CPU s": round(spent.cpu, 2), "seconds": round(spent.wall, 2)}
    if task.python:
        returns = [episode["episode_return"] for episode in played]
        means = [(r["agent_steps"], r["env/score_100"]) for r in records if "env/score_100" in r]
        learned = {"curve": curve(means, steps), "returns": returns}
        return {"score": float(np.mean(returns)), **found, **learned}
    measured = metric(task.environment)
    score = {"score": records[-1][measured], "episodes": records[-1]["env/n"]}
    return {**score, **found, "curve": parts(records, measured)}


def started(run: Run, place: Place, cores: set[int]) -> dict[str, str]:
    """The settings of a task, of a start of one epoch, which compiles what is to be compiled."""
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
    )
    words = [place.peers, str(HERE / "learning_peers.py"), json.dumps(job._asdict())]
    with tempfile.TemporaryDirectory() as folder:  # for what MuJoCo writes where it is
        lines = process(words, cores, Path(folder)).out.splitlines()
    (line,) = (line for line in lines if line.startswith("measured "))
    return json.loads(line.removeprefix("measured "))


# ---- all of them ---------------------------------------------------------------------------------


def cores_of(jobs: int, threads: int) -> list[set[int]]:
    """Cores for each of so many runs; empty sets where processes can't be bound.

    Raises:
        UserError: there are fewer.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [set() for _ in range(jobs)]
    free = sorted(os.sched_getaffinity(0))
    if jobs * threads > len(free):
        found = f"{jobs} runs at a time on {threads} cores each need {jobs * threads} cores"
        raise UserError(f"{found}; there are {len(free)}", "fewer --jobs or --threads")
    return [set(free[threads * i : threads * (i + 1)]) for i in range(jobs)]


class Work:
    """Runs that are to be made, `place.jobs` at a time."""

    def __init__(self, place: Place, say: Callable[[str], object]) -> None:
        self.place, self._say = place, say
        self.failed: list[str] = []
        self._cores: queue.SimpleQueue[set[int]] = queue.SimpleQueue()
        for cores in cores_of(place.jobs, place.threads):
            self._cores.put(cores)
        self._settings: dict[tuple[str, str], dict[str, Any] | None] = {}
        self._starting: dict[tuple[str, str], threading.Lock] = {}

    def do(self, runs: list[Run]) -> None:
        """Make them in this order, without those that are there."""
        end = time.monotonic() + self.place.max_seconds
        missing = [run for run in runs if self.place.again or not self.is_there(run)]
        self._starting = {(run.name, run.trainer): threading.Lock() for run in missing}
        with ThreadPoolExecutor(self.place.jobs) as pool:
            late = sum(pool.map(lambda run: self._one(run, end), missing))
        if late:
            self._say(f"{late} of {len(missing)} runs weren't begun in time; the same goes on")

    def is_there(self, run: Run) -> bool:
        return str(run.seed) in read(record_path(run, self.place.out))["seeds"]

    def _one(self, run: Run, end: float) -> bool:
        """Make a run; whether it was too late to."""
        if time.monotonic() > end:
            return True
        label, cores = f"{run.name} {run.trainer} seed {run.seed}", self._cores.get()
        try:
            settings = self._start(run, cores)
            if settings is None:  # its first run said why
                return False
            found = (ours if run.trainer == OURS else theirs)(run, self.place, cores)
            keep(run, self.place, settings, found)
            rate = found["steps"] / found["CPU s"]
            self._say(
                f"{label}: {found['score']:,.2f} after {found['steps']:,.0f} steps,"
                f" {found['CPU s']:,.0f} CPU s, {rate:,.0f} steps per CPU s"
            )
        except UserError as error:
            self.failed.append(label)
            self._say(f"{label} failed: {error}")
        finally:
            self._cores.put(cores)
        return False

    def _start(self, run: Run, cores: set[int]) -> dict[str, Any] | None:
        """The settings of a run's task, found once; None if there are none to be had."""
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
    """All runs, seed by seed: what is stopped early has as many seeds of each task.

    Raises:
        UserError: a seed whose environments would begin as those of the evaluation.
    """
    if seeds[0] < 1 or seeds[-1] > LAST_SEED:
        raise UserError(
            f"seeds {seeds[0]} to {seeds[-1]}, expected 1 to {LAST_SEED}: environments of training"
            f" begin at 1000 x seed, those of the evaluation at {EVALUATED}",
            "--seeds and --first-seed",
        )
    return [
        Run(name, trainer, seed)
        for seed in seeds
        for name in names
        for trainer in trainers
        if trainer == OURS or trainer in find(name).peers
    ]
