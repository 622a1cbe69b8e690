#!/usr/bin/env python
"""A Breakout for two cores that every seed learns: python benchmarks/sweep_breakout.py [--help].

First a search: `puffer-mlx sweep` around `breakout-fast`, judging by the worst of several seeds
with 860 as the score that is enough, begun from what was found before. With `--gpus N` it runs on
GPUs, several processes on each with one study for all of them: what is learned for how many steps
is the same there, and a run takes seconds. With 0 it runs on cores, two for each run.

Then the cheapest that all seeds reached 860 with are trained again, with other seeds, on two cores
each. What a run costs two cores is taken from its steps and passes. Written to --out: search.json,
verified.json, the sweep's journal and what its processes said.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from puffer_mlx import config as configs
from puffer_mlx.config import ini_text
from puffer_mlx.system.files import publish

sys.path.insert(0, str(Path(__file__).parent))
from time_to_score import reached

ENOUGH, SEEDS = 860.0, 4
ONE, C = "run 67", "C"  # of the search before: the cheapest with its own seed, and of its front
GIVEN: dict[str, dict[str, float]] = {
    ONE: {"horizon": 16, "minibatch_size": 16384, "learning_rate": 0.09, "gamma": 0.94859}
    | {"gae_lambda": 0.96697, "replay_ratio": 1.88, "vf_clip_coef": 2.59, "ent_coef": 0.00138}
    | {"clip_coef": 0.793, "vf_coef": 4.97},
    C: {"gamma": 0.95892, "gae_lambda": 0.97937, "replay_ratio": 1.5652, "vf_clip_coef": 4.134}
    | {"ent_coef": 0.00295, "clip_coef": 0.69274, "vf_coef": 4.571},
}
STARTS = [  # whose values, and millions of steps
    (C, 38.2),
    (ONE, 30),
    (C, 48),
    (ONE, 42),
    (C, 60),
    (ONE, 56),
]
RANGES = {  # distribution, least, most
    "total_timesteps": ("log_normal", 2.4e7, 8.7e7),
    "learning_rate": ("log_normal", 0.02, 0.15),
    "gamma": ("logit_normal", 0.94, 0.975),
    "gae_lambda": ("logit_normal", 0.94, 0.985),
    "replay_ratio": ("uniform", 1, 2.2),
    "ent_coef": ("log_normal", 5e-4, 6e-3),
    "clip_coef": ("uniform", 0.5, 1),
    "vf_coef": ("uniform", 1.5, 5),
    "vf_clip_coef": ("uniform", 1, 5),
    "minibatch_size": ("uniform_pow2", 8192, 32768),
    "horizon": ("uniform_pow2", 16, 32),
}
PUFFER = [sys.executable, "-m", "puffer_mlx"]


def settings(words: list[str]) -> str:
    """A configuration around breakout-fast as a file's text, without its sweep."""
    config = configs.load("breakout-fast", words)
    config.sweep = {}
    return ini_text(config)


def options_of(name: str, millions: float, part: float) -> list[str]:
    """What one of ``STARTS`` has, as options."""
    given = {**GIVEN[name], "total_timesteps": int(millions * part * 1e6)}
    return [f"--train.{key}={value}" for key, value in given.items()]


def write_files(folder: Path, part: float) -> list[str]:
    """The configurations of the search: its words."""
    kind, low, high = RANGES["total_timesteps"]
    ranges = {**RANGES, "total_timesteps": (kind, low * part, high * part)}
    sections = "".join(
        f"\n[sweep.train.{key}]\ndistribution = {kind}\nmin = {low}\nmax = {high}\nscale = auto\n"
        for key, (kind, low, high) in ranges.items()
    )
    head = f"\n[sweep]\nsweep_only = {', '.join(RANGES)}\nmax_runs = 100000\nseeds = {SEEDS}\n"
    head += f"seeds_score = worst\ntarget_score = {ENOUGH:g}\nnum_random_samples = 0\n"
    (folder / "search.ini").write_text(
        settings([f"--train.total-timesteps={int(86e6 * part)}"]) + head + sections
    )
    words = [str(folder / "search.ini")]
    for i, (name, millions) in enumerate(STARTS):
        path = folder / f"start-{i}.ini"
        path.write_text(settings(options_of(name, millions, part)))
        words += ["--start-from", str(path)]
    return words


def search(folder: Path, gpus: int, each: int, seconds: float, part: float) -> None:
    """Sweep until the time is over."""
    words = [
        "sweep",
        *write_files(folder, part),
        "--name",
        "search",
        "--dir",
        str(folder / "sweeps"),
    ]
    words += ["--storage", str(folder / "journal.log"), "--eval-episodes", "2000"]
    cores, made, ends = sorted(os.sched_getaffinity(0)), [], time.monotonic() + seconds
    where: list[tuple[list[str], dict[str, str], list[int]]] = []
    for i in range(gpus * each):
        on = ["--device", "gpu", "--train.rollout-device", "gpu-kernel"]
        mine = cores[i * len(cores) // (gpus * each) : (i + 1) * len(cores) // (gpus * each)]
        where.append((on, {"CUDA_VISIBLE_DEVICES": str(i % gpus)}, mine))
    if not gpus:
        on = ["--device", "cpu", "--parallel", str(max(1, len(cores) // 2))]
        where.append((on, {}, cores))
    for i, (on, variables, mine) in enumerate(where):
        with open(folder / f"search-{i}.txt", "wb") as output:
            process = subprocess.Popen(
                [*PUFFER, *words, *on],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
                cwd=folder,
            )
        os.sched_setaffinity(process.pid, mine)
        made.append(process)
        time.sleep(0 if i else 3.0)  # the first begins the study
    while time.monotonic() < ends and any(process.poll() is None for process in made):
        time.sleep(0.5)
    for process in made:
        process.terminate()
    for process in made:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def microseconds(values: dict[str, float]) -> float:
    """What a step costs two cores: acting, and as much for each pass; by RESULTS.md's runs."""
    return 0.05 + 0.81 * values["train.replay_ratio"]


def found(folder: Path) -> list[dict[str, Any]]:
    """All that was tried: values, the seeds' scores, modelled seconds; the best first."""
    from optuna.trial import TrialState

    from puffer_mlx.sweep.engine import opening, storage
    from puffer_mlx.sweep.engine.study import RUN, curves

    if not (folder / "journal.log").exists():
        return []
    opened = storage.open_storage(str(folder / "journal.log"))
    made = []
    for name in opening.names(opened):
        for trial in opened.get_all_trials(opened.get_study_id_from_name(name)):
            scores = [curve[-1].score for curve in curves(trial).values()]
            if RUN in trial.user_attrs or not scores or trial.state == TrialState.FAIL:
                continue
            seconds = trial.params["train.total_timesteps"] * microseconds(trial.params) / 1e6
            row = {"trial": trial.number, "scores": scores, "seconds": round(seconds, 1)}
            made.append({**row, "values": trial.params})

    def order(row: dict[str, Any]) -> tuple[bool, float, float]:
        worst, mean = min(row["scores"]), statistics.fmean(row["scores"])
        whole = len(row["scores"]) >= SEEDS
        good = whole and worst >= ENOUGH
        return (not good, row["seconds"] if good else 0.0, -(worst + mean) if whole else 0.0)

    return sorted(made, key=order)


def verify(rows: dict[str, list[str]], folder: Path, seeds: int, ends: float, record: Path) -> None:
    """Train options of breakout-fast on two cores each, with each seed, until the time is over."""
    cores = sorted(os.sched_getaffinity(0))
    free = [cores[i : i + 2] for i in range(0, len(cores) - 1, 2)] or [cores]
    done: list[dict[str, Any]] = []
    lock = threading.Lock()

    def one(name: str, seed: int) -> None:
        if time.monotonic() > ends:
            return
        with lock:
            mine = free.pop()
        row = train(rows[name], folder / "verify" / f"{name}-{seed}", seed, mine, ends)
        with lock:
            free.append(mine)
            done.append({"name": name, "options": rows[name], "seed": seed, **row})
            with publish(record) as path:
                path.write_text(json.dumps(done, indent=1) + "\n")
        print(name, seed, row, flush=True)

    with ThreadPoolExecutor(len(free)) as pool:
        for seed in range(1, seeds + 1):
            for name in rows:
                pool.submit(one, name, seed)


def train(
    words: list[str], folder: Path, seed: int, cores: list[int], ends: float
) -> dict[str, Any]:
    """One run on some cores; what it came to, or as far as it was when the time was over."""
    folder.mkdir(parents=True)
    threads = str(len(cores))
    names = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
    command = [*PUFFER, "train", "breakout-fast", *words, "--device", "cpu", "-q"]
    command += ["--seed", str(seed), "--vec.seed", str(1000 * seed), "--vec.max-threads", threads]
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(
            [*command, "--eval-episodes", "3000", "--checkpoint-interval", "0"],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **dict.fromkeys(names, threads)},
        )
        os.sched_setaffinity(process.pid, cores)
        try:
            process.wait(max(1.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    records = []
    for log in folder.glob("logs/*/*.jsonl"):
        records = [json.loads(line) for line in log.read_text().splitlines() if line[-1:] == "}"]
    training = [record for record in records if "SPS" in record]
    if not training:
        return {"exit code": process.returncode}
    first, last = reached(training, "env/score", ENOUGH), records[-1]
    return {
        "reached, s": first and first["uptime"],
        "reached, steps": first and first["agent_steps"],
        "training, s": training[-1]["uptime"],
        "steps": training[-1]["agent_steps"],
        "evaluation": last.get("env/score") if "SPS" not in last else None,
    }


def main() -> None:
    """Search, and verify."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of what is found")
    parser.add_argument("--gpus", type=int, default=0, help="that the search uses (0: cores)")
    parser.add_argument("--each", type=int, default=3, help="runs at once on each GPU (3)")
    parser.add_argument("--seconds", type=float, default=200, help="of the search (200)")
    parser.add_argument("--verify", type=float, default=220, help="seconds after it (220)")
    parser.add_argument("--candidates", type=int, default=3, help="that are verified (3)")
    parser.add_argument("--seeds", type=int, default=5, help="of them (5)")
    parser.add_argument("--part", type=float, default=1.0, help="of all steps, to try it out (1)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="sweep-breakout-"))  # of the runs: they write much
    began = time.monotonic()
    search(folder, options.gpus, options.each, options.seconds, options.part)
    rows = found(folder)
    left = options.seconds - (time.monotonic() - began)
    if options.gpus and not rows and left > 0:  # its processes ended: MLX has no GPU, say
        print((folder / "search-0.txt").read_text(errors="replace")[-2000:], flush=True)
        folder = folder / "cores"
        folder.mkdir()
        search(folder, 0, 1, left, options.part)
        rows = found(folder)
    with publish(options.out / "search.json") as path:
        path.write_text(json.dumps(rows, indent=1) + "\n")
    if (folder / "journal.log").exists():
        shutil.copy(folder / "journal.log", options.out)
    said = [path.read_text(errors="replace") for path in sorted(folder.glob("search-*.txt"))]
    (options.out / "search.txt").write_text("\n".join(said))
    print(f"searched for {time.monotonic() - began:.0f} s: {len(rows)} configurations", flush=True)
    for row in rows[:12]:
        print(row, flush=True)
    chosen = {
        f"trial {row['trial']}": [f"--{name}={value}" for name, value in row["values"].items()]
        for row in rows[: options.candidates]
    }
    ends = time.monotonic() + options.verify
    verify(chosen, folder, options.seeds, ends, options.out / "verified.json")
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
