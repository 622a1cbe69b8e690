#!/usr/bin/env python
"""A Breakout for two cores that every seed learns: python benchmarks/sweep_breakout.py [--help].

First a search: `puffer-mlx sweep` around `breakout-fast` with few agents, which learn from few
steps, judging by the worst of several seeds with 860 as the score that is enough. One core for each
run, `--each 2`: two; or with `--gpus N` on GPUs, several processes on each with one study for all.

Then the cheapest that all seeds reached 860 with are trained again, with other seeds, on two cores
each. Written to --out: search.json, verified.json, the sweep's journal and what its processes said.
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
from puffer_mlx.sweep.space import COST
from puffer_mlx.system.files import publish

sys.path.insert(0, str(Path(__file__).parent))
from time_to_score import reached

ENOUGH, SEEDS = 860.0, 3
FEW = {"train.total_timesteps": 16e6, "vec.total_agents": 256, "train.minibatch_size": 2048}
FEW |= {"train.replay_ratio": 1, "train.horizon": 32}
STARTS: list[dict[str, float]] = [  # differences from FEW, which the first run has
    {"train.total_timesteps": 24e6},
    {"train.total_timesteps": 11e6},
    {"train.total_timesteps": 11e6, "train.replay_ratio": 2},
    {"train.total_timesteps": 20e6, "vec.total_agents": 512, "train.minibatch_size": 4096},
    {"train.total_timesteps": 11e6, "vec.total_agents": 128, "train.minibatch_size": 1024},
    {"train.total_timesteps": 20e6, "train.minibatch_size": 4096},
    {"train.total_timesteps": 16e6, "train.replay_ratio": 0.7},
]
RANGES = {  # distribution, least, most
    "train.total_timesteps": ("log_normal", 6e6, 3e7),
    "vec.total_agents": ("uniform_pow2", 128, 512),
    "train.minibatch_size": ("uniform_pow2", 1024, 4096),
    "train.horizon": ("uniform_pow2", 16, 64),
    "train.learning_rate": ("log_normal", 0.015, 0.12),
    "train.gamma": ("logit_normal", 0.94, 0.98),
    "train.gae_lambda": ("logit_normal", 0.92, 0.985),
    "train.replay_ratio": ("uniform", 0.5, 2),
    "train.ent_coef": ("log_normal", 5e-4, 6e-3),
    "train.clip_coef": ("uniform", 0.5, 1),
    "train.vf_coef": ("uniform", 1.5, 5),
    "train.vf_clip_coef": ("uniform", 1, 5),
}
PUFFER = [sys.executable, "-m", "puffer_mlx"]


def settings(words: list[str]) -> str:
    """A configuration around breakout-fast as a file's text, without its sweep."""
    config = configs.load("breakout-fast", words)
    config.sweep = {}
    return ini_text(config)


def options_of(values: dict[str, float], part: float = 1.0) -> list[str]:
    """Values of ``FEW``, or others, as options."""
    steps = values["train.total_timesteps"] * part
    found = {**values, "train.total_timesteps": int(steps)}
    return [f"--{name}={value}" for name, value in found.items()]


def write_files(folder: Path, part: float) -> list[str]:
    """The configurations of the search: its words."""
    kind, low, high = RANGES[COST]
    ranges = {**RANGES, COST: (kind, low * part, high * part)}
    sections = "".join(
        f"\n[sweep.{name}]\ndistribution = {kind}\nmin = {low}\nmax = {high}\nscale = auto\n"
        for name, (kind, low, high) in ranges.items()
    )
    head = f"\n[sweep]\nsweep_only = {', '.join(RANGES)}\nmax_runs = 100000\nseeds = {SEEDS}\n"
    head += f"seeds_score = worst\ntarget_score = {ENOUGH:g}\nnum_random_samples = 0\n"
    (folder / "search.ini").write_text(settings(options_of(FEW, part)) + head + sections)
    words = [str(folder / "search.ini")]
    for i, start in enumerate(STARTS):
        path = folder / f"start-{i}.ini"
        path.write_text(settings(options_of({**FEW, **start}, part)))
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
        on = ["--device", "cpu", "--parallel", str(max(1, len(cores) // each))]
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


def found(folder: Path) -> list[dict[str, Any]]:
    """All that was tried: values, the seeds' scores, seconds of a run; the best first."""
    from optuna.trial import TrialState

    from puffer_mlx.sweep.engine import opening, storage
    from puffer_mlx.sweep.engine.study import RUN, curves

    if not (folder / "journal.log").exists():
        return []
    opened = storage.open_storage(str(folder / "journal.log"))
    made = []
    for name in opening.names(opened):
        for trial in opened.get_all_trials(opened.get_study_id_from_name(name)):
            ends = [curve[-1] for curve in curves(trial).values()]
            scores = [end.score for end in ends]
            if RUN in trial.user_attrs or not scores or trial.state == TrialState.FAIL:
                continue
            seconds = round(statistics.fmean(end.cost for end in ends), 1)
            row = {"trial": trial.number, "scores": scores, "seconds": seconds}
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
    parser.add_argument(
        "--each", type=int, default=1, help="runs on each GPU, or cores of each (1)"
    )
    parser.add_argument("--seconds", type=float, default=280, help="of the search (280)")
    parser.add_argument("--verify", type=float, default=240, help="seconds after it (240)")
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
