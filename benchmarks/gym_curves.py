#!/usr/bin/env python
"""Compare learning curves with other trainers: python benchmarks/gym_curves.py TASK ...

Trains each given Gymnasium environment with puffer_mlx and its shipped settings; with
`--peers PYTHON` (a Python with stable-baselines3, sbx-rl and torch) also with Stable-Baselines3's
and SBX's PPO and RL Zoo's settings (`learning_zoo.py`); with `--cleanrl FOLDER` (`cleanrl/` of its
checkout) also with CleanRL's script. All train for the steps of `learning_tasks.py`, but no longer
than `--seconds`. Each run is a process on `--cores` separate cores (2), `--jobs` runs at a time,
seed by seed. PyTorch uses one thread, because two are slower for its small products.

A point of a curve is the mean return of the last 100 training episodes, with the steps of all
environments, the CPU seconds and the seconds since the process began, including imports and
compiling. `--json FILE` writes the record; `--draw RECORD PICTURE` only draws a record.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import runpy
import statistics
import sys
import time
import types
from collections import deque
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))  # where this file was loaded by its path

from learning_peers import WINDOW, Job, make_trainer, watching
from learning_tasks import TASKS
from learning_zoo import SETTINGS

BEGAN = time.perf_counter()  # imports up to here take almost no time
POINTS = 100  # of a curve
TORCH_THREADS = 1
PUFFER_MLX = "puffer_mlx"
Point = list[float]  # steps, CPU seconds, seconds, mean return


class Curve:
    """Learning curve of a training run that ends after a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.points: list[Point] = []
        self._last: deque[float] = deque(maxlen=WINDOW)

    def see(self, steps: int, ended: list[float]) -> bool:
        """Add the returns of ended episodes to the learning curve. Returns True if time is left."""
        self._last.extend(ended)
        return self.mark(steps, statistics.fmean(self._last) if self._last else None)

    def mark(self, steps: int, mean: float | None) -> bool:
        """Add the current mean return to the learning curve. Returns True if time is left."""
        now = time.perf_counter() - BEGAN
        spaced = not self.points or now - self.points[-1][2] >= self.seconds / POINTS / 4
        if mean is not None and spaced:
            self.points.append([steps, spent(), now, mean])
        return now < self.seconds


def spent() -> float:
    """Return the CPU seconds of this process and of the processes that step its environments."""
    total = time.process_time()
    for worker in multiprocessing.active_children():
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


class TimeOver(Exception):
    """Error that ends CleanRL's script when the time of a run is over."""


# ---- in a separate process -----------------------------------------------------------------------


def ours(name: str, seed: int, steps: int, curve: Curve, _: str) -> tuple[str, ...]:
    import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
    from puffer_mlx import config, vec
    from puffer_mlx.system.devices import select_device
    from puffer_mlx.training.trainer import Trainer

    words = ["--device", "cpu", "--train.total-timesteps", str(steps), "--seed", str(seed)]
    settings = config.load(f"gym:{name}", [*words, "--vec.seed", str(1000 * seed)])
    select_device(settings.base.device)
    with vec.make(settings, 1) as environments:
        trainer = Trainer(settings, environments)
        for logs in trainer:
            if not curve.mark(trainer.global_step, logs.get("env/score_100")):
                break
    return "mlx", "gymnasium"


def sb3(name: str, seed: int, steps: int, curve: Curve, _: str) -> tuple[str, ...]:
    import torch

    trainer = make_trainer(Job(name, SETTINGS[name], steps, seed, 1000 * seed, 0, 0))
    torch.set_num_threads(TORCH_THREADS)
    trainer.learn(steps, callback=watching(curve.see))
    return "stable-baselines3", "torch", "gymnasium"


def sbx(name: str, seed: int, steps: int, curve: Curve, _: str) -> tuple[str, ...]:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    settings = {**SETTINGS[name], "algorithm": "sbx:PPO"}
    trainer = make_trainer(Job(name, settings, steps, seed, 1000 * seed, 0, 0))
    trainer.learn(steps, callback=watching(curve.see))
    return "sbx-rl", "jax", "gymnasium"


def cleanrl(name: str, seed: int, steps: int, curve: Curve, folder: str) -> tuple[str, ...]:
    """Run CleanRL's unchanged script, with its options and logs replaced."""
    import gymnasium
    import torch

    class Writer:
        def __init__(self, _: str) -> None: ...

        def add_text(self, _: str, __: str) -> None: ...

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            if tag == "charts/episodic_return" and not curve.see(step, [float(value)]):
                raise TimeOver

        def close(self) -> None: ...

    torch.set_num_threads(TORCH_THREADS)
    options = {"env_id": name, "seed": seed, "total_timesteps": steps, "cuda": False}
    tyro = types.SimpleNamespace(cli=lambda arguments: arguments(**options))
    tensorboard = types.SimpleNamespace(SummaryWriter=Writer)
    modules: dict[str, Any] = {"tyro": tyro, "torch.utils.tensorboard": tensorboard}
    sys.modules |= modules
    continuous = isinstance(gymnasium.make(name).action_space, gymnasium.spaces.Box)
    script = "ppo_continuous_action.py" if continuous else "ppo.py"
    runpy.run_path(str(Path(folder) / script), run_name="__main__")
    return "torch", "gymnasium"


TRAINERS: dict[str, Callable[..., tuple[str, ...]]] = {
    PUFFER_MLX: ours,
    "stable-baselines3": sb3,
    "sbx": sbx,
    "cleanrl": cleanrl,
}


def child(trainer: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train once in this process. Returns the points of the learning curve and the versions."""
    curve, steps = Curve(options.seconds), TASKS[name].steps
    packages: tuple[str, ...] = ()
    try:
        packages = TRAINERS[trainer](name, options.first_seed, steps, curve, options.cleanrl)
    except TimeOver:
        packages = "torch", "gymnasium"
    stride = -(-len(curve.points) // POINTS) or 1
    points = curve.points[::-1][::stride][::-1]  # the last one is among them
    return {
        "points": [[round(value, 3) for value in point] for point in points],
        "versions": {package: version(package) for package in packages},
    }


# ---- all of them ---------------------------------------------------------------------------------


def measure(trainer: str, name: str, seed: int, cores: set[int], options: Any) -> dict[str, Any]:
    """Train once in a separate process. Returns the learning curve and the cost."""
    from learning_processes import measured  # not at the top: the peers' Python hasn't puffer_mlx

    python = sys.executable if trainer == PUFFER_MLX else options.peers
    words = [__file__, name, "--child", trainer, "--first-seed", seed]
    words += ["--seconds", options.seconds, "--cleanrl", options.cleanrl]
    result, run = measured([python, *words], cores)
    return {**result, "CPU s": round(run.cpu, 1), "seconds": round(run.wall, 1)}


def by(points: list[Point], column: int, limit: float) -> float | None:
    """Return a curve's last mean return before a column, such as seconds, exceeds a limit.

    Returns None if no point is below the limit.
    """
    values = [point[3] for point in points if point[column] <= limit]
    return values[-1] if values else None


def row(runs: list[dict[str, Any]], seconds: float) -> dict[str, float | None]:
    """Return medians over a trainer's seeds on a task, such as the final return, by name.

    Returns {} if a seed has no points.
    """

    def median(values: list[float | None]) -> float | None:
        present = [value for value in values if value is not None]
        return statistics.median(present) if len(present) == len(values) else None

    if not all(run["points"] for run in runs):
        return {}  # no episode ended in the time
    ends = [run["points"][-1] for run in runs]
    result = {
        "steps": median([end[0] for end in ends]),
        "seconds": median([end[2] for end in ends]),
        "steps/s": median([end[0] / end[2] for end in ends]),
        "steps/CPU-s": median([end[0] / end[1] for end in ends]),
    }
    for position in (5, 2, 1):
        returns = [by(run["points"], 2, seconds / position) for run in runs]
        result[f"after {seconds / position:.0f} s"] = median(returns)
    return result


def show(record: dict[str, Any]) -> None:
    for name, trainers in record["tasks"].items():
        for trainer, runs in trainers.items():
            result = row(list(runs.values()), record["seconds"])
            cells = [f"{key} {value:,.0f}" for key, value in result.items() if value is not None]
            print(f"{name:12} {trainer:18} " + ", ".join(cells), flush=True)


def draw(record: dict[str, Any], picture: Path) -> None:
    """Draw two panels per task: returns against steps, and against seconds."""
    import figures  # not at the top: the peers' Python hasn't NumPy's friends
    import numpy as np

    colors = dict(
        zip(TRAINERS, (figures.OUR_COLOR, figures.PEER_COLOR, *figures.MORE[1:3]), strict=True)
    )
    caption = f"Median and range of the seeds, last {WINDOW} training episodes; {record['where']}"
    count = 2 * len(record["tasks"])
    with figures.panels(count, picture, caption, size=(4.2, 2.5), columns=2) as axes:
        for number, (name, trainers) in enumerate(record["tasks"].items()):
            for axis, column, unit, x in zip(
                axes[2 * number :], (0, 2), (1e6, 1), ("million steps", "seconds"), strict=False
            ):
                labels = []
                for trainer, runs in trainers.items():
                    curves = [np.array(run["points"]) for run in runs.values() if run["points"]]
                    if not curves:  # no episode ended
                        continue
                    curves = [curve[:, [column, 3]] / (unit, 1) for curve in curves]
                    end = figures.seeds(axis, curves, colors[trainer])
                    labels.append(figures.Label(end, trainer, colors[trainer]))
                axis.set_xlabel(x)
                if column:
                    figures.label(axis, labels)
                figures.title(axis, name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="name in learning_tasks.py")
    parser.add_argument("--seeds", type=int, default=3, help="seeds per trainer (3)")
    parser.add_argument("--first-seed", type=int, default=1, help="(1)")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit of a run (300)")
    parser.add_argument("--cores", type=int, default=2, help="cores per run (2)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (1)")
    parser.add_argument("--peers", metavar="PYTHON", help="Python with the other trainers")
    parser.add_argument("--cleanrl", default="", metavar="FOLDER", help="CleanRL's scripts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record")
    parser.add_argument("--draw", type=Path, nargs=2, help="a record, and the picture to write")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print("measured " + json.dumps(child(options.child, options.tasks[0], options)))
        return
    if options.draw:
        record, picture = options.draw
        draw(json.loads(record.read_text()), picture)
        return
    if not options.tasks:
        parser.error("name at least one task")
    if unknown := [name for name in options.tasks if name not in SETTINGS]:
        parser.error(f"no settings of RL Zoo for {', '.join(unknown)}: {', '.join(SETTINGS)}")
    if options.cleanrl and not options.peers:
        parser.error("--cleanrl needs --peers PYTHON, which has torch")
    trainers = [PUFFER_MLX, "stable-baselines3", "sbx"] if options.peers else [PUFFER_MLX]
    trainers += ["cleanrl"] if options.cleanrl else []
    record = recorded(trainers, options)
    show(record)
    if options.json:
        from learning_record import text_of

        from puffer_mlx.system.files import publish  # not at the top, as above

        with publish(options.json) as temporary:
            temporary.write_text(text_of(record))


def recorded(trainers: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Train with all trainers on all tasks, seed by seed. Returns the record of all curves."""
    from learning_processes import side_by_side  # not at the top, as above

    seeds = range(options.first_seed, options.first_seed + options.seeds)
    jobs = [(name, t, seed) for seed in seeds for name in options.tasks for t in trainers]
    tasks: dict[str, Any] = {name: {t: {} for t in trainers} for name in options.tasks}

    def one(job: tuple[str, str, int], cores: set[int]) -> None:
        name, trainer, seed = job
        tasks[name][trainer][str(seed)] = measure(trainer, name, seed, cores, options)
        print(f"{name}, {trainer}, seed {seed}", flush=True)

    side_by_side(one, jobs, options.jobs, options.cores)
    words = [*options.tasks, "--seeds", options.seeds, "--seconds", f"{options.seconds:g}"]
    words += ["--cores", options.cores, "--jobs", options.jobs]
    words += ["--peers PYTHON"] if options.peers else []
    words += ["--cleanrl FOLDER"] if options.cleanrl else []
    return {
        "command": " ".join(map(str, ["python benchmarks/gym_curves.py", *words])),
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "where": f"{options.cores} cores each, {options.jobs} runs at a time",
        "seconds": options.seconds,
        "tasks": tasks,
    }


if __name__ == "__main__":
    main()
