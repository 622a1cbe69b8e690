#!/usr/bin/env python
"""Return against steps and seconds, beside other trainers: python benchmarks/gym_curves.py TASK ...

Each of Gymnasium's environments named is trained by ours with the settings that come with it, and
with `--peers PYTHON` (stable-baselines3, sbx-rl and torch in it) by Stable-Baselines3's and SBX's
PPO with RL Zoo's settings (`learning_zoo.py`), and with `--cleanrl FOLDER` (`cleanrl/` of its
checkout) by CleanRL's own script, all for the steps of `learning_tasks.py`, but no longer than
`--seconds`. Each run is a process with `--cores` cores of its own (2), `--jobs` of them at a time,
seed by seed. PyTorch has one thread: with two it is slower, its products are small.

A point of a curve is the mean return of the last 100 training episodes, with the steps of all
environments, the CPU seconds and the seconds since the process began, imports and compiling
included. `--json FILE` keeps them; `--draw FILE` draws a record into FILE.png.
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

BEGAN = time.perf_counter()
sys.path.append(str(Path(__file__).parent))  # where this file was loaded by its path

from learning_peers import WINDOW, Job, make_trainer, watching
from learning_tasks import TASKS
from learning_zoo import SETTINGS

POINTS = 100
OURS = "puffer_mlx"
Point = list[float]  # steps, CPU seconds, seconds, mean return


class Curve:
    """The points of a run, which ends itself after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.points: list[Point] = []
        self._last: deque[float] = deque(maxlen=WINDOW)

    def see(self, steps: int, ended: list[float]) -> bool:
        """Returns of episodes that just ended; whether there is time left."""
        self._last.extend(ended)
        return self.mark(steps, statistics.fmean(self._last) if self._last else None)

    def mark(self, steps: int, mean: float | None) -> bool:
        """The mean return by now; whether there is time left."""
        now = time.perf_counter() - BEGAN
        spaced = not self.points or now - self.points[-1][2] >= self.seconds / POINTS / 4
        if mean is not None and spaced:
            self.points.append([steps, spent(), now, mean])
        return now < self.seconds


def spent() -> float:
    """CPU seconds of this process and those that step its environments."""
    total = time.process_time()
    for worker in multiprocessing.active_children():
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Enough(Exception):
    """The time is over."""


# ---- in a process of its own ---------------------------------------------------------------------


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
    trainer = make_trainer(Job(name, SETTINGS[name], steps, seed, 1000 * seed, 0, 0))
    trainer.learn(steps, callback=watching(curve.see))
    return "stable-baselines3", "torch", "gymnasium"


def sbx(name: str, seed: int, steps: int, curve: Curve, _: str) -> tuple[str, ...]:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    settings = {**SETTINGS[name], "algorithm": "sbx:PPO"}
    trainer = make_trainer(Job(name, settings, steps, seed, 1000 * seed, 0, 0))
    trainer.learn(steps, callback=watching(curve.see))
    return "sbx-rl", "jax", "gymnasium"


def cleanrl(name: str, seed: int, steps: int, curve: Curve, folder: str) -> tuple[str, ...]:
    """CleanRL's script as it is; its options and what it logs go through here."""
    import gymnasium
    import torch

    class Writer:
        def __init__(self, _: str) -> None: ...

        def add_text(self, _: str, __: str) -> None: ...

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            if tag == "charts/episodic_return" and not curve.see(step, [float(value)]):
                raise Enough

        def close(self) -> None: ...

    torch.set_num_threads(1)
    options = {"env_id": name, "seed": seed, "total_timesteps": steps, "cuda": False}
    tyro, tensorboard = types.ModuleType("tyro"), types.ModuleType("torch.utils.tensorboard")
    setattr(tyro, "cli", lambda arguments: arguments(**options))
    setattr(tensorboard, "SummaryWriter", Writer)
    sys.modules |= {"tyro": tyro, "torch.utils.tensorboard": tensorboard}
    continuous = isinstance(gymnasium.make(name).action_space, gymnasium.spaces.Box)
    script = "ppo_continuous_action.py" if continuous else "ppo.py"
    runpy.run_path(str(Path(folder) / script), run_name="__main__")
    return "torch", "gymnasium"


TRAINERS: dict[str, Callable[..., tuple[str, ...]]] = {
    OURS: ours,
    "stable-baselines3": sb3,
    "sbx": sbx,
    "cleanrl": cleanrl,
}


def child(trainer: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run: its points, and of how many steps a second."""
    curve, steps = Curve(options.seconds), TASKS[name].steps
    packages: tuple[str, ...] = ()
    try:
        packages = TRAINERS[trainer](name, options.first_seed, steps, curve, options.cleanrl)
    except Enough:
        packages = "torch", "gymnasium"
    stride = -(-len(curve.points) // POINTS) or 1
    points = curve.points[::-1][::stride][::-1]  # the last one is among them
    return {
        "points": [[round(value, 3) for value in point] for point in points],
        "versions": {package: version(package) for package in packages},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", metavar="TASK", help="of learning_tasks.py")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--first-seed", type=int, default=1, help="(1)")
    parser.add_argument("--seconds", type=float, default=300.0, help="of a run at most (300)")
    parser.add_argument("--cleanrl", default="", metavar="FOLDER", help="with CleanRL's scripts")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print("measured " + json.dumps(child(options.child, options.tasks[0], options)))
        return


if __name__ == "__main__":
    main()
