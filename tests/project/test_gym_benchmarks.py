"""The benchmarks on Gymnasium's environments: their numbers by hand."""

import importlib
import sys

import pytest
from running import ROOT

pytest.importorskip("gymnasium")
sys.path.append(str(ROOT / "benchmarks"))
peers, learning = (importlib.import_module(f"gym_{name}") for name in ("peers", "learning"))


def test_ratios_are_medians_of_each_pass():
    rates = {"puffer_mlx": [10.0, 40.0, 20.0], "sbx": [10.0, 10.0, 5.0]}
    runs = {
        name: [{"steps/s": r, "steps/CPU-s": 2 * r, "peak MiB": 1.0} for r in row]
        for name, row in rates.items()
    }
    summary = peers.summary({"8": runs})["8"]
    assert summary["ratios"] == {"puffer_mlx / sbx": {"steps/s": 4.0, "steps/CPU-s": 4.0}}


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
