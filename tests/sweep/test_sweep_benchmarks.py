"""The sweep benchmarks: their numbers by hand, and that they run."""

import json
import math
import re
import statistics
import sys

import pytest
from running import ROOT, benchmark, module_of


def load(name):
    return module_of(ROOT / "benchmarks" / f"{name}.py")


@pytest.fixture
def benchmarks():
    """Yield the modules of the sweep benchmarks, and forget them afterwards."""
    before = set(sys.modules)
    path = list(sys.path)
    yield load("sweep_methods"), load("sweep_early_stop")
    for name in set(sys.modules) - before:
        if name.startswith("sweep_"):
            del sys.modules[name]
    sys.path[:] = path


def test_early_stop_saves_a_third_of_the_cost_and_not_the_best_run(benchmarks):
    methods, early_stop = benchmarks
    surface = methods.surfaces()["curves"]
    plain, ended = (
        early_stop.sweep("Random", surface, 3, 15_000, quantile)
        for quantile in early_stop.QUANTILES.values()
    )
    runs = plain.runs  # the cost of as many runs
    assert ended.runs > runs and ended.curve[runs - 1][0] < 0.7 * plain.curve[-1][0]
    assert ended.curve[runs - 1][1] == plain.curve[-1][1] > 0


def test_saved_cost_is_compared_at_equal_scores(benchmarks):
    _, early_stop = benchmarks
    plain = [early_stop.Sweep([(10.0, 0.2), (50.0, 0.4), (90.0, 0.4)], 3, 0)]
    sooner = [early_stop.Sweep([(10.0, 0.2), (30.0, 0.4), (120.0, 0.9)], 3, 1)]
    never = [early_stop.Sweep([(10.0, 0.2), (110.0, 0.9)], 2, 1)]
    assert [plain[0].best(x) for x in (9, 10, 60, 100)] == [0.0, 0.2, 0.4, 0.4]
    assert early_stop.saved(plain, sooner, 100.0) == pytest.approx(0.4)
    assert early_stop.saved(plain, never, 100.0) == -math.inf


def test_sweep_tasks_scores_windows_and_areas(benchmarks):
    tasks = load("sweep_tasks")
    # Steps, CPU-seconds, episodes, their mean score; windows end at 25, 50 and 100, 20 wide.
    records = [(4, 1, 9, 9.0), (20, 2, 0, 0.0), (40, 3, 1, 3.0), (50, 4, 3, 7.0), (100, 9, 2, 8.0)]
    assert tasks.points(records) == [[6.0, 4, 50], [8.0, 9, 100]]
    ends = [(2.0, 10.0), (5.0, 30.0), (4.0, 40.0), (9.0, 100.0)]
    runs = [{"points": [[score, 1.0, 1]], "spent": spent} for score, spent in ends]
    assert tasks.chosen(runs, 50.0) is runs[1] and tasks.chosen(runs, 5.0) is None
    # Nothing for 10 s, 2 for 20 s, 5 for 20 s.
    assert tasks.area(runs, 50.0) == pytest.approx((2 * 20 + 5 * 20) / 50)


def test_sweep_methods_prints_the_median_of_its_record(tmp_path):
    words = "--seeds", "2", "--surfaces", "equal", "--methods", "Random", "--json", "out.json"
    done = benchmark("sweep_methods", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    sweeps = record["sweeps"]["equal"]["Random"]
    assert [each["runs"] for each in sweeps] == [40, 40]
    best = statistics.median(each["best"] for each in sweeps)
    assert re.search(rf"\| equal \| Random \| {best:.3f} \(", done.stdout), done.stdout


@pytest.mark.slow
def test_sweep_tasks_begins_each_method_with_the_same_run(tmp_path):
    words = ["--seeds", "1", "--tasks", "cartpole", "--methods", "Random", "TPE"]
    words += ["--at-once", "1", "--budget", "0.01", "--json", "out.json"]
    done = benchmark("sweep_tasks", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    first, second = (each["runs"] for each in record["sweeps"])
    assert first[0]["values"] == second[0]["values"]
    assert first[-1]["spent"] >= record["budgets"]["cartpole"] == pytest.approx(0.6)


def test_method_of_upstream_makes_the_asked_number_of_runs(benchmarks):
    methods, _ = benchmarks
    found = methods.sweep("upstream", methods.surfaces()["plateau"], 0, 12)
    assert found["runs"] == 12 and 0 <= found["best"] < 1
