"""The benchmarks on Gymnasium's environments: they run, and their numbers hang together."""

import importlib.util
import json
import statistics
import sys

import pytest
from running import ROOT, benchmark, files

pytest.importorskip("gymnasium")


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    module = load("gym_peers")
    rates = {"puffer_mlx": [10.0, 40.0, 20.0], "sbx": [10.0, 10.0, 5.0]}
    runs = {
        name: [{"steps/s": r, "steps/CPU-s": 2 * r, "peak MiB": 1.0} for r in row]
        for name, row in rates.items()
    }
    found = module.summary({"8": runs})["8"]
    assert found["ratios"] == {"puffer_mlx / sbx": {"steps/s": 4.0, "steps/CPU-s": 4.0}}
    assert found["medians"]["puffer_mlx"]["steps/CPU-s"] == 40.0


@pytest.mark.slow
def test_peers_errors(tmp_path):
    done = benchmark("gym_peers", "--trainers", "nobody", cwd=tmp_path)
    assert done.returncode == 2 and "no trainer 'nobody'; there are puffer_mlx;" in done.stderr
    words = ["--trainers", "sbx", "--passes", 1, "--peers", sys.executable]
    done = benchmark("gym_peers", *words, cwd=tmp_path)  # this Python hasn't it
    assert done.returncode == 1 and "sbx with 8 environments failed" in done.stderr


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
    score = load("gym_learning").Score(10.0)
    assert not score.add([0.0] * 50, 100)
    assert not score.add([19.0] * 49, 200)  # 99 episodes
    assert not score.add([20.0], 300)  # 951 / 100
    assert not score.add([], 400)
    assert score.add([20.0] * 3, 500)  # three zeros have left the window: 1011 / 100
    assert score.add([0.0] * 100, 600) and score.reached == 500
    record = score.record(600, ("gymnasium",))
    assert record["best"] == pytest.approx(10.11) and record["episodes"] == 203
    assert record["curve"] == [[100, 0.0], [200, 19.0], [300, 20.0], [500, 20.0], [600, 0.0]]


def test_within_the_budget_takes_every_seed():
    summary = load("gym_learning").summary
    runs = [{"reached": steps, "CPU s": 1.0} for steps in (50, 90, 70)]
    found = summary(runs, 90)
    assert (found["median"], found["within the budget"]) == (70, True)
    assert not summary(runs, 89)["within the budget"]
    failed = summary([*runs, {"reached": None, "CPU s": 9.0}], 90)
    assert failed["median"] is None and not failed["within the budget"]


@pytest.mark.slow
def test_learning_errors(tmp_path):
    done = benchmark("gym_learning", "Nothing-v0", cwd=tmp_path)
    assert done.returncode == 2 and "no task Nothing-v0; there are CartPole-v1" in done.stderr
    done = benchmark("gym_learning", "CartPole-v1", "--train.gama", "0.9", cwd=tmp_path)
    assert done.returncode == 1 and "train.gama" in done.stderr
    for name in ("gym_learning", "gym_peers"):
        done = benchmark(name, "--core", 4000, cwd=tmp_path)
        assert done.returncode == 2 and "may not use core 4000" in done.stderr
