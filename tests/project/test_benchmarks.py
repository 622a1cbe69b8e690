"""Benchmarks that compare: they run, and their numbers are computed as they say."""

import json
import re
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running import benchmark, files

pytestmark = pytest.mark.slow  # they start many runs
BATCH = 8 * 8
SIZES = f"""
    --device cpu --env.size 3 --policy.hidden-size 8 --vec.total-agents 8 --vec.num-buffers 2
    --train.horizon 8 --train.minibatch-size {BATCH // 2}
""".split()


def test_overlap_reports_medians_and_ratios_of_its_rounds(tmp_path):
    words = ["squared", *SIZES, "--epochs", 2, "--repeat", 3, "--json", "record.json"]
    done = benchmark("overlap", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads((tmp_path / "record.json").read_text())
    rounds = {name: row["ms"] for name, row in record["rounds"].items()}
    longer = [*map(max, rounds["rollout alone"], rounds["training alone"])]
    both = rounds["overlapped"]
    expected = {
        "serial, ms": statistics.median(rounds["serial"]),
        "the longer half, ms": statistics.median(longer),
        "overlapped / the longer half": statistics.median(map(lambda a, b: a / b, both, longer)),
        "speed-up over serial": statistics.median(map(lambda a, b: a / b, rounds["serial"], both)),
        "steps/s, overlapped": 1000 * BATCH / statistics.median(both),
    }
    assert {name: record["results"][name] for name in expected} == pytest.approx(expected)
    for name, value in record["results"].items():
        assert re.search(rf"^{re.escape(name)} +{value:,.2f}", done.stdout, re.MULTILINE), name


OTHER = """
import json, pathlib, sys
if "--seed" in sys.argv:
    sys.exit("no such option")
pathlib.Path("logs/x").mkdir(parents=True)
records = [{"SPS": 900.0}] * 2 + [{"SPS": 2.0}, {"SPS": 4.0}, {"SPS": 3.0}, {"SPS": 3.0}, {"x": 1}]
pathlib.Path("logs/x/1.jsonl").write_text("\\n".join(map(json.dumps, records)))
"""


def test_commits_compares_speeds_without_the_first_third_of_a_run(tmp_path):
    (tmp_path / "other/scripts").mkdir(parents=True)
    (tmp_path / "other/scripts/train.py").write_text(OTHER)
    words = ["other", "squared", "--pairs", 2, *SIZES, "--train.total-timesteps", 6 * BATCH]
    done = benchmark("commits", *words, "--json", "record.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    row = json.loads((tmp_path / "record.json").read_text())["steps per second"]["squared"]
    assert row["other"] == [3.0, 3.0]
    assert row["ratio"] == pytest.approx(sum(row["this"]) / 2 / 3)
    done = benchmark("commits", *words, "--seed", 1, cwd=tmp_path)
    assert done.returncode == 2 and "no such option" in done.stderr


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


def test_precision_learning_keeps_runs_and_refuses_other_options(tmp_path):
    words = ["--tasks", "squared", "--variants", "fp32,bf16+overlap", "--seeds", 1]
    words += ["--score", "episode_length", "--jobs", 2, "--out", "kept", *SIZES]
    words += ["--train.total-timesteps", 40 * BATCH]
    first = benchmark("precision_learning", *words, cwd=tmp_path)
    assert first.returncode in (0, 1), first.stderr  # 40 epochs prove nothing
    before = files(tmp_path)
    again = benchmark("precision_learning", *words, cwd=tmp_path)
    assert (again.returncode, again.stdout, again.stderr) == (first.returncode, first.stdout, "")
    assert files(tmp_path) == before
    other = benchmark("precision_learning", *words, "--train.gamma", 0.9, cwd=tmp_path)
    assert other.returncode == 2 and "the same options, or another --out" in other.stderr
