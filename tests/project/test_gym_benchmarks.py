"""The benchmarks on Gymnasium's environments: they run, and their numbers hang together."""

import importlib
import json
import statistics
import sys

import pytest
from running import ROOT, benchmark, files

pytest.importorskip("gymnasium")
sys.path.append(str(ROOT / "benchmarks"))
peers, learning = (importlib.import_module(f"gym_{name}") for name in ("peers", "learning"))


# ---- gym_peers.py --------------------------------------------------------------------------------


@pytest.mark.slow
def test_peers_speeds(tmp_path):
    words = ["--envs", "4,8", "--trainers", "puffer_mlx;puffer_mlx, sync", "--passes", 2]
    done = benchmark("gym_peers", *words, "--seconds", 0.01, "--json", "record.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == {"record.json"}
    record = json.loads((tmp_path / "record.json").read_text())
    assert list(record["runs"]) == ["4", "8"]
    for agents, trainers in record["runs"].items():
        assert list(trainers) == ["puffer_mlx", "puffer_mlx, sync"]
        for name, passes in trainers.items():
            assert len(passes) == 2 and all(one["iterations"] >= 1 for one in passes)
            assert all({"mlx", "gymnasium"} < set(one["versions"]) for one in passes)
            medians = record["results"][agents]["medians"][name]
            for key in ("steps/s", "steps/CPU-s", "peak MiB"):
                assert medians[key] == statistics.median(one[key] for one in passes) > 0
        assert record["results"][agents]["ratios"] == {}  # there are no peers
    assert str(tmp_path) not in json.dumps(record) and str(ROOT) not in json.dumps(record)


def test_ratios_are_medians_of_each_pass():
    rates = {"puffer_mlx": [10.0, 40.0, 20.0], "sbx": [10.0, 10.0, 5.0]}
    runs = {
        name: [{"steps/s": r, "steps/CPU-s": 2 * r, "peak MiB": 1.0} for r in row]
        for name, row in rates.items()
    }
    summary = peers.summary({"8": runs})["8"]
    assert summary["ratios"] == {"puffer_mlx / sbx": {"steps/s": 4.0, "steps/CPU-s": 4.0}}
    assert summary["medians"]["puffer_mlx"]["steps/CPU-s"] == 40.0


# ---- gym_learning.py -----------------------------------------------------------------------------


@pytest.mark.slow
def test_learning_to_a_limit(tmp_path):
    words = ["CartPole-v1", "--seeds", 2, "--limit", 600, "--json", "record.json"]
    more = ["--vec.total-agents", 4, "--train.horizon", 16, "--train.minibatch-size", 32]
    done = benchmark("gym_learning", *words, *more, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")  # nobody learns it in 600 steps
    assert files(tmp_path) == {"record.json"}
    record = json.loads((tmp_path / "record.json").read_text())
    task = record["tasks"]["CartPole-v1"]
    runs = task["runs"]["puffer_mlx"]
    assert [one["seed"] for one in runs] == [1, 2]
    for one in runs:
        assert (one["steps"], one["reached"]) == (640, None)  # ten epochs of 64 steps
        assert one["CPU s"] > 0.2 and 5 <= one["episodes"] <= 80
        assert all(8 <= mean <= 200 and steps <= 640 for steps, mean in one["curve"])
    assert runs[0]["curve"] != runs[1]["curve"]
    result = task["results"]["puffer_mlx"]
    assert result["reached"] == [None, None] and not result["within the budget"]
    assert "--train.horizon 16" in record["command"]
    assert str(tmp_path) not in json.dumps(record) and str(ROOT) not in json.dumps(record)


def test_the_score_by_hand():
    score = learning.Score(10.0)
    assert not score.add([0.0] * 50, 100)
    assert not score.add([19.0] * 49, 200)  # 99 episodes
    assert not score.add([20.0], 300)  # 951 / 100
    assert not score.add([], 400)
    assert score.add([20.0] * 3, 500)  # three zeros have left the window: 1011 / 100
    assert score.add([0.0] * 100, 600) and score.reached == 500
    record = score.record(600, ("gymnasium",))
    assert record["best"] == pytest.approx(10.11) and record["episodes"] == 203
    assert record["curve"] == [[100, 0.0], [200, 19.0], [300, 20.0], [500, 20.0], [600, 0.0]]
    runs = [{"reached": steps, "CPU s": 1.0} for steps in (50, 90, 70)]
    for each, budget, median, within in (
        (runs, 90, 70, True),  # which takes every seed
        (runs, 89, 70, False),
        ([*runs, {"reached": None, "CPU s": 9.0}], 90, None, False),
    ):
        summary = learning.summary(each, budget)
        assert (summary["median"], summary["within the budget"]) == (median, within)
