"""The benchmarks on Gymnasium's environments: they run, and their numbers hang together."""

import importlib
import itertools
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


# ---- gym_curves.py -------------------------------------------------------------------------------


@pytest.mark.slow
def test_curves_of_a_few_seconds(tmp_path):
    words = ["CartPole-v1", "--seeds", 2, "--seconds", 3, "--cores", 1, "--json", "record.json"]
    done = benchmark("gym_curves", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads((tmp_path / "record.json").read_text())
    runs = record["tasks"]["CartPole-v1"]["puffer_mlx"]
    assert list(runs) == ["1", "2"] and runs["1"]["points"] != runs["2"]["points"]
    for run in runs.values():
        for before, after in itertools.pairwise(run["points"]):
            assert all(a < b for a, b in zip(before[:3], after[:3], strict=True))
        steps, cpu, seconds, mean = run["points"][-1]
        assert steps >= 512 and 8 <= mean <= 500 and seconds <= run["seconds"]
        assert cpu <= run["CPU s"]
    assert str(tmp_path) not in json.dumps(record) and str(ROOT) not in json.dumps(record)
    words = ["--draw", "record.json", "record.png"]
    assert benchmark("gym_curves", *words, cwd=tmp_path).returncode == 0
    assert files(tmp_path) == {"record.json", "record.png"}


def test_rows_of_curves_by_hand():
    points = [[100, 1.0, 2.0, 10.0], [300, 3.0, 4.0, 30.0], [400, 8.0, 10.0, 70.0]]
    assert [curves.by(points, 2, limit) for limit in (1, 2, 9.9, 10)] == [None, 10.0, 30.0, 70.0]
    assert curves.by(points, 0, 350) == 30.0
    later = [[a, b, c, 2 * d] for a, b, c, d in points]
    found = curves.row([{"points": points}, {"points": later}], 10.0)
    assert found == {
        "steps": 400,
        "seconds": 10.0,
        "steps/s": 40.0,
        "steps/CPU-s": 50.0,
        "after 2 s": 15.0,
        "after 5 s": 45.0,
        "after 10 s": 105.0,
    }
    assert curves.row([{"points": points}, {"points": points[1:]}], 10.0)["after 2 s"] is None
    assert curves.row([{"points": points}, {"points": []}], 10.0) == {}


def test_cleanrls_script_is_heard_and_ended(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    script = """
from dataclasses import dataclass
import tyro
from torch.utils.tensorboard import SummaryWriter

@dataclass
class Args:
    env_id: str = "CartPole-v0"
    seed: int = 1
    total_timesteps: int = 7
    cuda: bool = True

args = tyro.cli(Args)
writer = SummaryWriter("runs")
writer.add_text("hyperparameters", "none")
writer.add_scalar("charts/SPS", 5.0, 10)
for step in range(args.seed, args.total_timesteps):
    writer.add_scalar("charts/episodic_return", float(step), step)
"""
    (tmp_path / "ppo.py").write_text(script)
    for name in ("tyro", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    seen = []

    class Curve:
        def see(self, steps, ended):
            seen.append((steps, ended))
            return steps < 5

    with pytest.raises(curves.Enough):
        curves.cleanrl("CartPole-v1", 3, 9, Curve(), str(tmp_path))
    assert seen == [(3, [3.0]), (4, [4.0]), (5, [5.0])]
