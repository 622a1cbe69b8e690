"""Benchmarks run, and precision_learning.py computes its numbers as it says."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running import ROOT, benchmark

pytestmark = pytest.mark.slow  # they start many runs
SMALL = """--device cpu --env.size 3 --policy.hidden-size 8 --vec.total-agents 8
    --vec.num-buffers 2 --train.horizon 8 --train.minibatch-size 32 --train.total-timesteps 2560"""
FEW = "--vec.total-agents 4 --train.horizon 16 --train.minibatch-size 32"
COMMANDS = {
    "cycling": "--train.total-timesteps 100_000 --base.checkpoint-interval 1 --seeds 1",
    "gym_curves": "CartPole-v1 --seeds 2 --seconds 3 --cores 1",
    "gym_learning": f"CartPole-v1 --seeds 2 --limit 600 {FEW}",
    "gym_peers": "--envs 4,8 --trainers puffer_mlx --passes 2 --seconds 0.01",
    "overlap": f"squared {SMALL} --epochs 2 --repeat 3",
    "precision_learning": f"--tasks squared --variants fp32,bf16+overlap --seeds 1 {SMALL}",
    "seeds": f"squared --seeds 2 --agents 8 --bounds 2 {SMALL}",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_benchmark_runs_and_writes_its_record(tmp_path, name):
    done = benchmark(name, *COMMANDS[name].split(), "--json", "record.json", cwd=tmp_path)
    assert done.returncode in (0, 1)  # 1: what so short a run learns is too little
    assert done.stderr == "" and done.stdout
    text = (tmp_path / "record.json").read_text()
    assert json.loads(text) and str(tmp_path) not in text and str(ROOT) not in text


# ---- precision_learning.py -----------------------------------------------------------------------


def keep(folder: Path, variant: str, seed: int, scores: list[float], steps: int = 1000) -> None:
    """Write a run as --out does, an epoch for each score; no episode ended where it is 0."""
    kept = folder / "kept" / "squared" / variant / str(seed)
    log = kept / "logs" / "squared" / "1.jsonl"
    log.parent.mkdir(parents=True)
    records = []
    for epoch, score in enumerate(scores, 1):
        record = {"SPS": 50.0 * epoch, "agent_steps": steps * epoch, "loss/total": 1.0}
        record |= {"util/cpu_mem_gb": 0.5, "util/mlx_mem_gb": 0.25 + epoch / 100}
        records.append(record | ({"env/score": score, "env/n": 4.0 + epoch} if score else {}))
    records.append({"agent_steps": 10**6, "env/score": 1e6, "env/n": 1e6})  # the evaluation
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    (kept / "done.json").write_text("{}")


def compare(folder: Path, *more: object) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    words = ["--tasks", "squared", "--variants", "fp32,bf16", "--json", "out.json", *more]
    done = benchmark("precision_learning", *words, "--runs", "kept", cwd=folder)
    path = folder / "out.json"
    return done, json.loads(path.read_text()) if path.exists() else {}


BASE = [0.0, 2.0, 4.0, 4.0, 6.0, 8.0, 8.0, 8.0, 9.0, 10.0] * 2  # 20 epochs


def test_precision_learning_computes_tail_and_area_of_a_curve(tmp_path):
    keep(tmp_path, "fp32", 1, BASE)
    keep(tmp_path, "bf16", 1, [0.96 * score for score in BASE])
    done, record = compare(tmp_path, "--seeds", 1)
    assert (done.returncode, done.stderr, record["failed"]) == (0, "", [])
    row = record["tasks"]["squared"]["bf16"]
    tail = (9 * 23 + 10 * 24) / (23 + 24)  # the last two epochs, weighted by episodes
    filled = [2.0, *BASE[1:10], 6.0, *BASE[11:]]  # interpolated where no episode ended
    assert row["tail, median"] == pytest.approx(0.96 * tail)
    assert row["area, median"] == pytest.approx(0.96 * sum(filled) / 20)
    assert row["SPS, median"] == 50 * (4 + 20) / 2  # the first three compile
    assert (row["host, GiB, median"], row["MLX, GiB, median"]) == (0.5, 0.45)


@pytest.mark.parametrize(
    ("factors", "passes"),
    [
        ((0.97, 0.96, 1.1, 0.99, 0.98), True),
        ((0.94, 0.94, 1.1, 0.94, 1.2), False),  # the median
        ((0.80, 0.80, 1.0, 1.0, 1.0), False),  # the interval's lower end
    ],
)
def test_precision_learning_fails_below_its_margin(tmp_path, factors, passes):
    for seed, factor in enumerate(factors, 1):
        keep(tmp_path, "fp32", seed, [seed * score for score in BASE])
        keep(tmp_path, "bf16", seed, [seed * factor * score for score in BASE])
    done, record = compare(tmp_path)
    assert (done.returncode, record["failed"]) == ((0, []) if passes else (1, ["squared bf16"]))
