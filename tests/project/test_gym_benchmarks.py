"""The benchmarks on Gymnasium's environments: their numbers by hand, and that they run."""

import importlib
import json
import statistics
import sys

import pytest
from running import ROOT, benchmark, files

pytest.importorskip("gymnasium")
sys.path.append(str(ROOT / "benchmarks"))
peers, learning, curves = (
    importlib.import_module(f"gym_{name}") for name in ("peers", "learning", "curves")
)


@pytest.mark.slow
def test_gym_peers_reports_medians_of_its_passes(tmp_path):
    words = ["--envs", "4,8", "--trainers", "puffer_mlx;puffer_mlx, sync", "--passes", 2]
    done = benchmark("gym_peers", *words, "--seconds", 0.01, "--json", "record.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads((tmp_path / "record.json").read_text())
    assert list(record["runs"]) == ["4", "8"]
    for agents, trainers in record["runs"].items():
        for name, passes in trainers.items():
            medians = record["results"][agents]["medians"][name]
            for key in ("steps/s", "steps/CPU-s", "peak MiB"):
                assert medians[key] == statistics.median(one[key] for one in passes) > 0
    assert str(tmp_path) not in json.dumps(record) and str(ROOT) not in json.dumps(record)


def test_ratios_are_medians_of_each_pass():
    rates = {"puffer_mlx": [10.0, 40.0, 20.0], "sbx": [10.0, 10.0, 5.0]}
    runs = {
        name: [{"steps/s": r, "steps/CPU-s": 2 * r, "peak MiB": 1.0} for r in row]
        for name, row in rates.items()
    }
    summary = peers.summary({"8": runs})["8"]
    assert summary["ratios"] == {"puffer_mlx / sbx": {"steps/s": 4.0, "steps/CPU-s": 4.0}}


@pytest.mark.slow
def test_gym_learning_stops_at_its_limit_and_exits_with_1(tmp_path):
    words = ["CartPole-v1", "--seeds", 2, "--limit", 600, "--json", "record.json"]
    more = ["--vec.total-agents", 4, "--train.horizon", 16, "--train.minibatch-size", 32]
    done = benchmark("gym_learning", *words, *more, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    task = json.loads((tmp_path / "record.json").read_text())["tasks"]["CartPole-v1"]
    runs = task["runs"]["puffer_mlx"]
    ends = [(one["seed"], one["steps"], one["reached"]) for one in runs]
    assert ends == [(1, 640, None), (2, 640, None)]  # ten epochs of 64 steps
    assert runs[0]["curve"] != runs[1]["curve"]
    assert not task["results"]["puffer_mlx"]["within the budget"]


def test_score_is_the_mean_of_the_last_100_episodes():
    score = learning.Score(10.0)
    assert not score.add([0.0] * 50, 100)
    assert not score.add([19.0] * 49, 200)  # 99 episodes
    assert not score.add([20.0], 300)  # 951 / 100
    assert score.add([20.0] * 3, 500)  # three zeros have left the window: 1011 / 100
    assert score.add([0.0] * 100, 600) and score.reached == 500
    record = score.record(600, ("gymnasium",))
    assert record["best"] == pytest.approx(10.11) and record["episodes"] == 203
    assert record["curve"] == [[100, 0.0], [200, 19.0], [300, 20.0], [500, 20.0], [600, 0.0]]


def test_every_seed_must_reach_the_score_within_the_budget():
    runs = [{"reached": steps, "CPU s": 1.0} for steps in (50, 90, 70)]
    failed = [*runs, {"reached": None, "CPU s": 9.0}]
    found = [learning.summary(*each) for each in ((runs, 90), (runs, 89), (failed, 90))]
    assert [each["within the budget"] for each in found] == [True, False, False]
    assert [each["median"] for each in found] == [70, 70, None]


@pytest.mark.slow
def test_gym_curves_records_and_draws_growing_curves(tmp_path):
    words = ["CartPole-v1", "--seeds", 2, "--seconds", 3, "--cores", 1, "--json", "record.json"]
    done = benchmark("gym_curves", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads((tmp_path / "record.json").read_text())
    for run in record["tasks"]["CartPole-v1"]["puffer_mlx"].values():
        for column in [*zip(*run["points"], strict=True)][:3]:
            assert [*column] == sorted(set(column))
    words = ["--draw", "record.json", "record.png"]
    assert benchmark("gym_curves", *words, cwd=tmp_path).returncode == 0
    assert files(tmp_path) == {"record.json", "record.png"}


def test_row_of_curves_has_medians_at_times():
    points = [[100, 1.0, 2.0, 10.0], [300, 3.0, 4.0, 30.0], [400, 8.0, 10.0, 70.0]]
    assert [curves.by(points, 2, limit) for limit in (1, 2, 9.9, 10)] == [None, 10.0, 30.0, 70.0]
    later = [[a, b, c, 2 * d] for a, b, c, d in points]
    assert curves.row([{"points": points}, {"points": later}], 10.0) == {
        "steps": 400,
        "seconds": 10.0,
        "steps/s": 40.0,
        "steps/CPU-s": 50.0,
        "after 2 s": 15.0,
        "after 5 s": 45.0,
        "after 10 s": 105.0,
    }
    assert curves.row([{"points": points}, {"points": []}], 10.0) == {}
