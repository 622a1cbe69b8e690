"""Read and write the records of learning benchmarks: scores and costs of runs.

A record is a file for a task and a trainer: `TASK.json` for puffer_mlx and `TASK.TRAINER.json` for
another trainer. It has the command and the machine; `settings` lists the differences from
default.ini, or from Stable-Baselines3's defaults; `seeds` has a run for each seed:

    score       mean of `returns`; in C the score of the evaluation after training (`episodes`)
    steps       training steps
    curve       20 points [steps, mean return of the last 100 episodes]; in C 40 points [steps, mean
                score of the episodes that ended since the previous point]
    CPU s       user and system time of `train.py`, including imports, threads and children; without
                imports for other trainers; missing if not measured
    seconds     duration
    returns     returns of the evaluation's episodes: deterministic (Atari: sampled actions), with
                the normalization statistics of training; episode k has the seed 10,000 + k
    at a time   number of runs in parallel, each on `cores` cores

A file is replaced after each run, so that only the current run is lost if the process is killed.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from learning_tasks import record_stem

from puffer_mlx.errors import UserError
from puffer_mlx.system.files import publish


class Run(NamedTuple):
    """A training run to record: names of the task and the trainer, and the seed."""

    name: str
    trainer: str
    seed: int


def versions(environment: str) -> dict[str, str]:
    """Return the installed versions of the packages that decide a run's results.

    Args:
        environment: First word of the run's command line. For environments in Python the packages
            with their physics and games are among them: MuJoCo 4 differs from 3 on equal actions.
    """
    python = ("gymnasium", "mujoco", "ale-py", "box2d", "envpool") if ":" in environment else ()
    found = {}
    for package in ("mlx", "numpy", *python):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def record_path(run: Run, out: Path) -> Path:
    return out / f"{record_stem(run.name, run.trainer)}.json"


def read(path: Path) -> dict[str, Any]:
    """Read a record of runs from a JSON file. Returns a record without runs if there is no file."""
    return json.loads(path.read_text()) if path.is_file() else {"seeds": {}}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the records of a folder for other processes in a ``with`` block."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def keep(run: Run, out: Path, facts: dict[str, Any], results: dict[str, Any]) -> None:
    """Add a run to its record.

    Args:
        run: Task, trainer and seed.
        out: Folder of records.
        facts: Facts common to all runs. If their `settings` changed, earlier runs are removed.
        results: Results of the run.
    """
    path = record_path(run, out)
    with locked(out):
        seeds = read(path)["seeds"] if same(path, facts["settings"]) else {}
        seeds = {**seeds, str(run.seed): results}
        seeds = dict(sorted(seeds.items(), key=lambda item: int(item[0])))
        with publish(path) as temporary:
            temporary.write_text(text_of({**facts, "seeds": seeds}))


def text_of(record: dict[str, Any]) -> str:
    """Return a record of runs as JSON text, with each list of numbers in one line."""
    text = json.dumps(record, indent=1) + "\n"
    return re.sub(r"\[[^][{}]*\]", lambda match: " ".join(match[0].split()), text)


def same(path: Path, settings: dict[str, Any]) -> bool:
    """Return True if the record in a file was made with these settings, or doesn't exist."""
    return not path.is_file() or read(path).get("settings") == settings


def check_settings(path: Path, settings: dict[str, Any]) -> None:
    """Check that the record in a file was made with these settings, or doesn't exist.

    Raises:
        UserError: If the record has other settings.
    """
    if not same(path, settings):
        old = read(path).get("settings") or {}
        names = sorted(k for k in {*old, *settings} if old.get(k) != settings.get(k))
        differences = ", ".join(
            f"{k} {old.get(k, '-')}, now {settings.get(k, '-')}" for k in names[:5]
        )
        raise UserError(
            f"{path.name} was made with other settings: {differences}",
            "--again replaces it; --out FOLDER keeps both",
        )
