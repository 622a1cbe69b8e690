"""The benchmarks that compare: they run, their numbers hang together, and their gate can fail."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running import benchmark, files

pytestmark = pytest.mark.slow  # they start many runs: by night
BATCH = 8 * 8
SIZES = f"""
    --device cpu --env.size 3 --policy.hidden-size 8 --vec.total-agents 8 --vec.num-buffers 2
    --train.horizon 8 --train.minibatch-size {BATCH // 2}
""".split()


# ---- overlap.py ----------------------------------------------------------------------------------


def overlap(folder: Path, *more: object) -> dict[str, Any]:
    words = ["squared", *SIZES, "--epochs", 2, "--repeat", 3, "--json", "record.json", *more]
    done = benchmark("overlap", *words, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads((folder / "record.json").read_text())
    for name, value in record["results"].items():
        assert re.search(rf"^{re.escape(name)} +{value:,.2f}", done.stdout, re.MULTILINE), name
    assert files(folder) == {"record.json"}
    return record


def test_overlap(tmp_path):
    record = overlap(tmp_path)
    rounds = {name: row["ms"] for name, row in record["rounds"].items()}
    assert list(rounds) == ["rollout alone", "training alone", "overlapped", "serial"]
    assert all(len(times) == 3 and min(times) > 0 for times in rounds.values())

    def median(values):
        return sorted(values)[1]

    def ratio(above, below):
        return median(a / b for a, b in zip(above, below, strict=True))

    alone, both, serial = list(rounds.values())[:2], rounds["overlapped"], rounds["serial"]
    longer = [max(pair) for pair in zip(*alone, strict=True)]
    results = record["results"]
    expected = {
        "serial, ms": median(serial),
        "the longer half, ms": median(longer),
        "overlapped / the longer half": ratio(both, longer),
        "speed-up over serial": ratio(serial, both),
        "steps/s, overlapped": 1000 * BATCH / median(both),
    }
    assert {name: results[name] for name in expected} == pytest.approx(expected)
    assert all(value > 0 for value in results.values())
    assert results["longer half / shorter"] >= 1


# ---- commits.py ----------------------------------------------------------------------------------

OTHER = """
import json, pathlib, sys
if "--seed" in sys.argv:
    sys.exit("no such option")
pathlib.Path("logs/x").mkdir(parents=True)
records = [{"SPS": 900.0}] * 2 + [{"SPS": 2.0}, {"SPS": 4.0}, {"SPS": 3.0}, {"SPS": 3.0}, {"x": 1}]
pathlib.Path("logs/x/1.jsonl").write_text("\\n".join(map(json.dumps, records)))
"""


def test_commits(tmp_path):
    (tmp_path / "other/scripts").mkdir(parents=True)
    (tmp_path / "other/scripts/train.py").write_text(OTHER)
    words = ["other", "squared", "--pairs", 2, *SIZES, "--train.total-timesteps", 6 * BATCH]
    done = benchmark("commits", *words, "--json", "record.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    row = json.loads((tmp_path / "record.json").read_text())["steps per second"]["squared"]
    assert row["other"] == [3.0, 3.0]  # the first third left out
    assert row["ratio"] == pytest.approx(sum(row["this"]) / 2 / 3)
    assert f"squared: {row['ratio']:.3f} (" in done.stdout

    done = benchmark("commits", *words, "--seed", 1, cwd=tmp_path)
    assert done.returncode == 2 and "failed in" in done.stderr and "no such option" in done.stderr


# ---- precision_learning.py -----------------------------------------------------------------------


def keep(folder: Path, variant: str, seed: int, scores: list[float], steps: int = 1000) -> None:
    """A run as --out keeps it: an epoch of so many steps for each score; 0 had no episode."""
    kept = folder / "squared" / variant / str(seed)
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


def compare(folder: Path, *more: object) -> tuple[subprocess.CompletedProcess[str], dict]:
    words = ["--tasks", "squared", "--variants", "fp32,bf16", "--json", "out.json", *more]
    done = benchmark("precision_learning", *words, "--runs", "kept", cwd=folder)
    path = folder / "out.json"
    return done, json.loads(path.read_text()) if path.exists() else {}


BASE = [0.0, 2.0, 4.0, 4.0, 6.0, 8.0, 8.0, 8.0, 9.0, 10.0] * 2  # 20 epochs


def test_tail_and_area_by_hand(tmp_path):
    keep(tmp_path / "kept", "fp32", 1, BASE)
    keep(tmp_path / "kept", "bf16", 1, [0.96 * score for score in BASE])
    done, record = compare(tmp_path, "--seeds", 1)
    assert (done.returncode, done.stderr) == (0, "")
    row = record["tasks"]["squared"]["bf16"]
    tail = (9 * 23 + 10 * 24) / (23 + 24)  # the last two epochs, by episodes
    filled = [2.0, *BASE[1:10], 6.0, *BASE[11:]]  # where no episode ended, what is between
    assert row["tail, median"] == pytest.approx(0.96 * tail)
    assert row["area, median"] == pytest.approx(0.96 * sum(filled) / 20)
    assert row["tail"]["ratios"] == row["area"]["ratios"] == pytest.approx([0.96])
    assert row["SPS, median"] == 50 * (4 + 20) / 2  # the first three compile
    assert (row["host, GiB, median"], row["MLX, GiB, median"]) == (0.5, 0.45)
    assert record["failed"] == [] and "all pass" in done.stdout


def test_the_gate(tmp_path):
    for factors, passes in (
        ((0.97, 0.96, 1.1, 0.99, 0.98), True),
        ((0.94, 0.94, 1.1, 0.94, 1.2), False),  # the median
        ((0.80, 0.80, 1.0, 1.0, 1.0), False),  # the interval's lower end
    ):
        folder = tmp_path / str(factors)
        for seed, factor in enumerate(factors, 1):
            keep(folder / "kept", "fp32", seed, [seed * score for score in BASE])
            keep(folder / "kept", "bf16", seed, [seed * factor * score for score in BASE])
        done, record = compare(folder)
        row = record["tasks"]["squared"]["bf16"]
        assert (done.returncode, row["passed"]) == (0 if passes else 1, passes)
        assert record["failed"] == ([] if passes else ["squared bf16"])
        tail = row["tail"]
        assert tail["median"] == pytest.approx(sorted(factors)[2])
        assert min(factors) - 1e-9 <= tail["low"] <= tail["median"] <= tail["high"]
        assert record["tasks"]["squared"]["fp32"]["passed"]


def test_what_cannot_be_compared(tmp_path):
    kept = tmp_path / "kept"
    keep(kept, "fp32", 1, BASE)
    done, record = compare(tmp_path, "--seeds", 1)  # a variant without runs
    assert done.returncode == 1 and record["failed"] == ["squared bf16"]
    keep(kept, "bf16", 1, BASE, steps=500)
    keep(kept, "fp16", 1, [1.0] * 10 + [0.0] * 10)
    keep(kept, "fp32", 2, [-1.0] * 20)
    for more, words in (
        (("--seeds", 1), "weren't trained for equal steps"),
        (("--seeds", 1, "--variants", "fp32,fp16"), "ended in the last 10%"),
        (("--seeds", 1, "--variants", "fp32", "--first-seed", 2), "isn't positive"),
        (("--seeds", 1, "--score", "perf"), "no score 'perf'"),
        (("--variants", "fp32,fp64"), "no 'fp64'"),
        (("--seeds", 0), "at least 1"),
        (("--train.horizon", 8), "--runs trains nothing"),
    ):
        done, _ = compare(tmp_path, *more)
        assert done.returncode == 2 and words in done.stderr, done.stderr


def test_runs_are_kept_and_go_on(tmp_path):
    words = ["--tasks", "squared", "--variants", "fp32,bf16+overlap", "--seeds", 1]
    words += ["--score", "episode_length", "--jobs", 2, "--out", "kept", *SIZES]
    words += ["--train.total-timesteps", 40 * BATCH]
    first = benchmark("precision_learning", *words, cwd=tmp_path)
    assert first.returncode in (0, 1), first.stderr  # 40 epochs tell nothing
    logs = sorted((tmp_path / "kept").rglob("*.jsonl"))
    assert len(logs) == 2 and sum("done" in line for line in first.stderr.splitlines()) == 2
    times = [log.stat().st_mtime_ns for log in logs]
    again = benchmark("precision_learning", *words, cwd=tmp_path)
    assert (again.returncode, again.stdout, again.stderr) == (first.returncode, first.stdout, "")
    assert [log.stat().st_mtime_ns for log in logs] == times
    other = benchmark("precision_learning", *words, "--train.gamma", 0.9, cwd=tmp_path)
    assert other.returncode == 2 and "the same options, or another --out" in other.stderr
