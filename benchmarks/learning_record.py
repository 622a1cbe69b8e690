"""Records of learning: the scores and costs of runs.

A record is a file for a task and a trainer, `TASK.json` of ours and `TASK.TRAINER.json` of a peer.
It says what was run and where; `settings` is what differs from default.ini, or from
Stable-Baselines3's defaults; `seeds` has a run for each seed:

    score       mean of `returns`; in C that of the evaluation after training, of `episodes`
    steps       of training
    curve       [steps, mean return of the last 100 episodes] at 20 points; in C [steps, mean score
                of the episodes that ended in it] of 40 parts
    CPU s       user and system, of `train.py` from its start to its end, threads and children
                included; of a peer without its imports; left out where not measured
    seconds     that it took
    returns     of the evaluation's episodes: most probable actions (Atari: drawn ones), statistics
                as training left them, episode k of an environment seeded with 10,000 + k
    at a time   number of runs in parallel, each on `cores` cores

Files are published by rename after each run: one that is killed loses nothing but what it is at.
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

from learning_tasks import stem

from puffer_mlx.errors import UserError
from puffer_mlx.system.files import publish


class Run(NamedTuple):
    """One seed of a trainer on a task."""

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
    return out / f"{stem(run.name, run.trainer)}.json"


def read(path: Path) -> dict[str, Any]:
    """Return a record, without runs if the file doesn't exist."""
    return json.loads(path.read_text()) if path.is_file() else {"seeds": {}}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the records of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def keep(run: Run, out: Path, about: dict[str, Any], found: dict[str, Any]) -> None:
    """Add a run to its record.

    Args:
        run: task, trainer and seed.
        out: folder of records.
        about: facts common to all runs. If their `settings` changed, earlier runs are dropped.
        found: results of the run.
    """
    path = record_path(run, out)
    with locked(out):
        seeds = read(path)["seeds"] if same(path, about["settings"]) else {}
        seeds = {**seeds, str(run.seed): found}
        seeds = dict(sorted(seeds.items(), key=lambda item: int(item[0])))
        with publish(path) as temporary:
            temporary.write_text(text_of({**about, "seeds": seeds}))


def text_of(record: dict[str, Any]) -> str:
    """JSON with a list of numbers in one line."""
    text = json.dumps(record, indent=1) + "\n"
    return re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), text)


def same(path: Path, settings: dict[str, Any]) -> bool:
    """Return True if a record has these settings or doesn't exist."""
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
