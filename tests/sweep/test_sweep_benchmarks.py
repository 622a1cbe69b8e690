"""The sweep benchmarks run, and what they are to show they show."""

import json
import math
import re
import statistics
import subprocess
import sys

import pytest
from running import ROOT, module_of


def load(name):
    return module_of(ROOT / "benchmarks" / f"{name}.py")


@pytest.fixture
def benchmarks(monkeypatch):
    """The modules, which leave no trace."""
    before, path = set(sys.modules), list(sys.path)
    yield load("sweep_methods"), load("sweep_early_stop")
    for name in set(sys.modules) - before:
        if name.startswith("sweep_"):
            del sys.modules[name]
    sys.path[:] = path


def test_ending_runs_early_saves_a_third_of_the_cost_and_not_the_best(benchmarks):
    methods, early_stop = benchmarks
    surface, forms = methods.surfaces()["curves"], early_stop.FORMS.values()
    plain, ended = (early_stop.sweep("Random", surface, 3, 15_000, each) for each in forms)
    assert plain.ended == 0 < ended.ended < ended.runs - plain.runs / 2
    # The same runs: what they cost when as many of them were begun, ended early or not.
    runs = plain.runs
    assert ended.runs > runs and ended.curve[runs - 1][0] < 0.7 * plain.curve[-1][0]
    assert ended.curve[runs - 1][1] == plain.curve[-1][1] > 0


def test_numbers_of_the_tables_by_hand(benchmarks):
    methods, early_stop = benchmarks
    assert early_stop.FORMS["ended"] == methods.SweepSettings(method="Random").stop_quantile
    plain = [early_stop.Sweep([(10.0, 0.2), (50.0, 0.4), (90.0, 0.4)], 3, 0)]
    sooner = [early_stop.Sweep([(10.0, 0.2), (30.0, 0.4), (120.0, 0.9)], 3, 1)]
    never = [early_stop.Sweep([(10.0, 0.2), (110.0, 0.9)], 2, 1)]
    assert [plain[0].best(x) for x in (9, 10, 60, 100)] == [0.0, 0.2, 0.4, 0.4]
    assert early_stop.saved(plain, sooner, 100.0) == pytest.approx(0.4)
    assert early_stop.saved(plain, never, 100.0) == -math.inf
    points = [methods.Point(0.5, 0.4, 10.0), methods.Point(0.9, 0.7, 20.0)]
    assert [methods.chosen(points, most) for most in (15.0, 25.0, 5.0)] == [0.4, 0.7, 0.0]
    tasks = load("sweep_tasks")
    # Steps, CPU-seconds, episodes, their mean score; windows end at 25, 50 and 100, 20 wide.
    records = [(4, 1, 9, 9.0), (20, 2, 0, 0.0), (40, 3, 1, 3.0), (50, 4, 3, 7.0), (100, 9, 2, 8.0)]
    assert tasks.points(records) == [[6.0, 4, 50], [8.0, 9, 100]]
    assert tasks.points([*records[:-1], (100, 9, 0, 0.0)]) == []
    ends = [(2.0, 10.0), (5.0, 30.0), (4.0, 40.0), (9.0, 100.0)]
    runs = [{"points": [[score, 1.0, 1]], "spent": spent} for score, spent in ends]
    runs.insert(1, {"points": [], "spent": 20.0})
    assert tasks.chosen(runs, 50.0) is runs[2] and tasks.chosen(runs, 5.0) is None
    # Nothing for 10 s, 2 for 20 s, 5 for 20 s.
    assert tasks.area(runs, 50.0) == pytest.approx((2 * 20 + 5 * 20) / 50)


def test_surfaces_are_best_where_they_say(benchmarks):
    methods, _ = benchmarks
    for name, surface in methods.surfaces().items():
        values = surface.space.to_values(surface.space.default)
        short, long = (surface.score(values, steps) for steps in (1e7, 1e9))
        assert 0 < short < long < 1, name
    cliffs = methods.surfaces()["cliffs"]
    values |= cliffs.space.to_values(cliffs.space.default)
    assert math.isnan(cliffs.score(values | {"train.learning_rate": 0.09, "env.p0": 0.8}, 1e8))


def ran(folder, name, *words):
    """What a benchmark prints, and its record."""
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / f"{name}.py"),
        *words,
        "--json",
        "out.json",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "out.json").read_text())


def test_a_table_and_a_record(tmp_path):
    words = "--seeds", "2", "--surfaces", "equal", "--methods", "Random"
    out, record = ran(tmp_path, "sweep_methods", *words)
    sweeps = record["sweeps"]["equal"]["Random"]
    assert len(sweeps) == 2 and {each["runs"] for each in sweeps} == {40}
    best = statistics.median(each["best"] for each in sweeps)
    assert re.search(rf"\| equal \| Random \| {best:.3f} \(", out), out


@pytest.mark.slow
def test_sweeps_of_a_task(tmp_path):
    words = ["--seeds", "1", "--tasks", "cartpole", "--methods", "Random", "TPE"]
    out, record = ran(tmp_path, "sweep_tasks", *words, "--at-once", "1", "--budget", "0.01")
    sweeps = {each["method"]: each["runs"] for each in record["sweeps"]}
    assert sweeps.keys() == {"Random", "TPE"}
    assert sweeps["Random"][0]["values"] == sweeps["TPE"][0]["values"]
    assert sweeps["Random"][0]["values"]["train.total_timesteps"] == 50_000
    for runs in sweeps.values():
        assert runs[-1]["spent"] >= record["budgets"]["cartpole"] == pytest.approx(0.6)
        assert any(len(run.get("again", [])) == 3 for run in runs)
    assert "| cartpole | TPE |" in out


def test_methods_make_an_equal_number_of_runs_whatever_these_cost(benchmarks):
    """Upstream's form, too, which nothing else runs."""
    methods, _ = benchmarks
    for name in "Protein", "upstream", "Random":
        for surface in "curves", "plateau":
            found = methods.sweep(name, methods.surfaces()[surface], 0, 12)
            assert found["runs"] == 12 and 0 <= found["best"] < 1, (name, surface)
