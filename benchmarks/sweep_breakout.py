#!/usr/bin/env python
"""Search a configuration of Breakout for two cores: python benchmarks/sweep_breakout.py [--help].

The goal is a configuration that every seed learns. Runs `puffer-mlx sweep` around `breakout-cpu`,
scored by the worst of four seeds, for `--seconds`; then trains the best three configurations with
held-out seeds (`sweep.confirm`). With `--gpus N`, each GPU has `--each` processes, which share one
study. Without GPUs there is one process, whose runs have `--each` cores.

The cost that matters is CPU-seconds, which a run on a shared GPU can't measure. So the settings
that determine CPU-seconds (steps, replay_ratio, the policy's size, agents, the minibatch) are equal
in all runs of a sweep. Further options of `scripts/train.py` set them: `--train.total-timesteps
16_000_000 --policy.hidden-size 32`. The search then finds the best configuration with this cost.

Written to --out: found.json (all trials, the confirmed ones first), best.ini, the journal, and the
output of the processes.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from puffer_mlx import config as configs
from puffer_mlx.config import ini_text
from puffer_mlx.system.json_text import write_json

SEEDS = 4
STARTS: list[dict[str, float]] = [  # first runs, as differences from breakout-cpu
    {"train.learning_rate": 0.06},
    {"train.learning_rate": 0.08},
    {"env.frameskip": 4, "train.gamma": 0.97, "train.ent_coef": 0.003},
    {"env.frameskip": 4, "train.gamma": 0.97, "train.learning_rate": 0.06},
    {"train.learning_rate": 0.06, "train.ent_coef": 0.003},
    {"train.learning_rate": 0.06, "train.gamma": 0.968, "train.max_grad_norm": 1},
]
RANGES = {  # distribution, minimum, maximum
    "env.frameskip": ("int_uniform", 2, 5),
    "train.learning_rate": ("log_normal", 0.03, 0.15),
    "train.gamma": ("logit_normal", 0.955, 0.985),
    "train.gae_lambda": ("logit_normal", 0.93, 0.985),
    "train.ent_coef": ("log_normal", 8e-4, 6e-3),
    "train.clip_coef": ("uniform", 0.6, 1),
    "train.vf_coef": ("uniform", 2, 5),
    "train.max_grad_norm": ("uniform", 0.4, 1.5),
    "train.beta1": ("logit_normal", 0.65, 0.92),
}
GPU_OPTIONS = ["--device", "gpu", "--train.rollout-device", "gpu-kernel"]
PUFFER_MLX = [sys.executable, "-m", "puffer_mlx"]  # the command puffer-mlx


def settings(arguments: list[str], change: dict[str, float]) -> str:
    """Return a configuration near breakout-cpu as the text of an .ini file, without [sweep].

    Args:
        arguments: Options of `scripts/train.py`.
        change: Changed values by key.
    """
    changes = [f"--{name}={value}" for name, value in change.items()]
    config = configs.load("breakout-cpu", [*arguments, *changes])
    config.sweep = {}
    return ini_text(config)


def write_files(folder: Path, more: list[str]) -> list[str]:
    """Write the sweep's configuration files to a folder. Returns the arguments of `puffer-mlx`."""
    sections = "".join(
        f"\n[sweep.{name}]\ndistribution = {kind}\nmin = {low}\nmax = {high}\nscale = auto\n"
        for name, (kind, low, high) in RANGES.items()
    )
    head = f"\n[sweep]\nsweep_only = {', '.join(RANGES)}\nseeds = {SEEDS}\nseeds_score = worst\n"
    (folder / "search.ini").write_text(settings(more, {}) + head + sections)
    arguments = ["sweep", str(folder / "search.ini")]
    for i, start in enumerate(STARTS):
        path = folder / f"start-{i}.ini"
        path.write_text(settings(more, start))
        arguments += ["--start-from", str(path)]
    arguments += ["--name", "search", "--dir", str(folder / "sweeps")]
    return [*arguments, "--storage", str(folder / "journal.log"), "--eval-episodes", "1000"]


def sweep(arguments: list[str], folder: Path, gpus: int, each: int, seconds: float) -> None:
    """Run all processes of a sweep of Breakout until they end or the time is over."""
    cores = sorted(os.sched_getaffinity(0))
    deadline = time.monotonic() + seconds
    cpu_options = ["--device", "cpu", "--parallel", str(max(1, len(cores) // each))]
    processes = []
    count = gpus * each or 1
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
    for i in range(count):
        with open(folder / f"search-{i}.txt", "ab") as output:
            process = subprocess.Popen(
                [*PUFFER_MLX, *arguments, *(GPU_OPTIONS if gpus else cpu_options)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": visible[i % gpus] if gpus else ""},
                cwd=folder,
            )
        own_cores = cores[i * len(cores) // count : (i + 1) * len(cores) // count]
        os.sched_setaffinity(process.pid, own_cores or cores)
        processes.append(process)
        if i == 0:
            time.sleep(3.0)  # this process creates the study
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.5)
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def read_trials(journal: Path) -> list[dict[str, Any]]:
    """Return all trials of a sweep: values and scores of each, those with most seeds first."""
    from optuna.trial import TrialState

    from puffer_mlx.sweep.engine import storage, study
    from puffer_mlx.sweep.engine.study import HELD_OUT_PREFIX, RUN_NUMBER, seed_curves

    opened = storage.open_storage(str(journal))
    (name,) = study.study_names(opened)
    study_id = opened.get_study_id_from_name(name)
    attributes = opened.get_study_user_attrs(study_id)
    rows: list[dict[str, Any]] = []
    for trial in opened.get_all_trials(study_id):
        ends = [curve[-1] for curve in seed_curves(trial).values()]
        if RUN_NUMBER in trial.user_attrs or not ends or trial.state == TrialState.FAIL:
            continue
        held_out = [
            each
            for key, each in attributes.items()
            if key.startswith(f"{HELD_OUT_PREFIX} {trial.number} ")
        ]
        rows.append(
            {
                "trial": trial.number,
                "scores": [end.score for end in ends],
                "held out": [each["score"] for each in held_out if "score" in each],
                "seconds": round(statistics.fmean(end.cost for end in ends), 2),
                "values": trial.params,
            }
        )

    def order(row: dict[str, Any]) -> tuple[bool, int, float]:
        return not row["held out"], -len(row["scores"]), -min(row["scores"])

    return sorted(rows, key=order)


def main() -> None:
    """Search configurations of Breakout, confirm the best ones, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs to use (0: train on cores)")
    parser.add_argument(
        "--each", type=int, default=1, help="processes per GPU, or cores per run (1)"
    )
    parser.add_argument("--seconds", type=float, default=380, help="duration of the search (380)")
    parser.add_argument("--confirm", type=int, default=8, help="held-out seeds (8)")
    parser.add_argument(
        "--confirming", type=float, default=90, help="maximum seconds to confirm (90)"
    )
    options, more = parser.parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    # Not in options.out: the runs write large files.
    folder = Path(tempfile.mkdtemp(prefix="sweep-breakout-"))
    arguments = write_files(folder, more)
    rows: list[dict[str, Any]] = []
    for max_runs, held_out_seeds, seconds in (
        (1_000_000, 0, options.seconds),  # search
        (1, options.confirm, options.confirming),  # confirm the best configurations
    ):
        limits = ["--sweep.max-runs", str(max_runs), "--sweep.confirm", str(held_out_seeds)]
        sweep([*arguments, *limits], folder, options.gpus, options.each, seconds)
        rows = read_trials(folder / "journal.log")
        record = {"command": " ".join(sys.argv), "configurations": rows}
        write_json(record, options.out / "found.json")
        for path in (
            *folder.glob("*.log"),
            *folder.glob("search-*.txt"),
            *folder.rglob("best.ini"),
        ):
            shutil.copy(path, options.out)
    for row in rows[:12]:
        print(row, flush=True)


if __name__ == "__main__":
    main()
