"""The benchmark of learning: tasks, records, tables, and the nightly run."""

import importlib
import itertools
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import ROOT, benchmark, files

from puffer_mlx import config
from puffer_mlx.errors import UserError

sys.path.append(str(ROOT / "benchmarks"))
PARTS = ("nightly", "runs", "table", "tasks", "zoo")
nightly, runs, table, tasks, zoo = (importlib.import_module(f"learning_{part}") for part in PARTS)
learning = importlib.import_module("learning")
PUFFER_MLX, SB3 = tasks.PUFFER_MLX, tasks.SB3


def write_record(folder: Path, name: str, trainer: str = PUFFER_MLX, **seeds: Any) -> None:
    """Write an imitated record of the learning benchmark. seeds: s1=(score, CPU s)."""
    folder.mkdir(exist_ok=True)
    made = {
        seed.removeprefix("s"): {
            "score": score,
            "steps": 1000,
            "CPU s": spent,
            "curve": [[edge, score * edge / 1000] for edge in range(50, 1001, 50)],
        }
        for seed, (score, spent) in seeds.items()
    }
    record = {"task": name, "trainer": trainer, "metric": "env/score", "seeds": made}
    (folder / f"{tasks.record_stem(name, trainer)}.json").write_text(json.dumps(record))


# ---- tasks ---------------------------------------------------------------------------------------


def test_settings_of_all_tasks_are_valid():
    for name, task in tasks.TASKS.items():
        environment, *words = runs.training(runs.Run(name, PUFFER_MLX, 3), runs.RunOptions(Path()))
        settings = config.load(environment, words)
        assert (settings.base.seed, settings.vec.seed) == (3, 3000), name
        assert task.steps in (0, settings.train.total_timesteps), name
    assert set(zoo.PUBLISHED) <= set(tasks.IN_PYTHON)
    used = [peer for task in tasks.TASKS.values() for peer in task.peers.values()]
    assert all(settings in used for settings in zoo.SETTINGS.values())


def test_seed_of_evaluations_is_no_seed_of_training():
    with pytest.raises(UserError, match="expected 1 or more without 10"):
        runs.plan(["catch"], [PUFFER_MLX], range(9, 12))


# ---- numbers -------------------------------------------------------------------------------------


def test_interval_of_interquartile_means_is_that_of_all_resamples():
    assert table.interquartile_mean(np.array([[8.0, 1, 2, 4], [1, 1, 1, 5]])).tolist() == [3, 1]
    scores = [3.0, 7.0, 8.0, 12.0, 20.0]
    every = [sorted(sample)[1:4] for sample in itertools.product(scores, repeat=5)]
    low, high = np.quantile([statistics.fmean(middle) for middle in every], [0.025, 0.975])
    mean, *interval = table.interval(scores)
    assert mean == 9 and interval == pytest.approx([low, high], abs=0.4)
    assert table.interval([1.0]) is None


def test_probability_of_improvement_counts_pairs():
    pairs = [([1.0, 3.0], [2.0, 2.0]), ([5.0, 6.0], [5.0, 1.0])]  # 2 of 4; 3.5 of 4
    mean, low, high = table.improvement(pairs)
    assert mean == pytest.approx((0.5 + 0.875) / 2)
    assert 0 <= low < mean < high <= 1
    assert table.improvement([([2.0, 3.0], [0.0, 1.0])]) == (1, 1, 1)


# ---- tables --------------------------------------------------------------------------------------


def test_tables_show_medians_ranges_and_failed_seeds(tmp_path):
    write_record(tmp_path, "Hopper-v5", s1=(1000, 1), s2=(3000, 2), s3=(2000, 4))
    write_record(tmp_path, "Hopper-v5", SB3, s1=(2500, 10), s2=(2400, 20), s3=(2600, 5))
    write_record(tmp_path, "catch", s1=(4.0, 2), s2=(5.0, 4), s3=(4.5, 2))
    write_record(tmp_path, "upstream-moba", s1=(0.88, 1), s2=(0.8, 1), s3=(0.96, 1))
    write_record(tmp_path, "partial-t_maze-MinGRU", s1=(4.0, 1), s2=(3.0, 1), s3=(4.0, 1))
    write_record(tmp_path, "partial-t_maze-RecurrentPPO-zoo", s1=(2.0, 10))
    text = table.tables(tmp_path)
    rows = [re.split(r" ?\| ?", line)[1:-1] for line in text.splitlines() if line[:1] == "|"]
    found = {row[0]: row[1:] for row in rows}
    hopper = found["Hopper-v5 ↓"]  # below RL Zoo's
    assert hopper[:2] == ["0.001 M", "2,000 (1,000 – 3,000); 1 failed"]
    assert hopper[3] == "**2,500 (2,400 – 2,600)**" and hopper[5:] == ["2,410", "500", "100", "5"]
    assert found["catch"][1:3] == ["score", "4.50 (4.00 – 5.00)"] and found["catch"][-1] == "500"
    # the scores at 950 and 1000 of 1000 steps
    assert found["moba"][4:6] == ["0.858 (0.780 – 0.936)", "0.998 (0.986 – 1.000)"]
    assert found["t_maze"][1:] == ["4.00 (3.00 – 4.00); 1,000", "2.00; 100"]
    assert "probability of 0.33 [" in text


# ---- records -------------------------------------------------------------------------------------


class Fakes:
    """Replaces the training runs of the learning benchmark by stubs, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Any] = []
        self.settings = {"train.gamma": "0.9"}
        monkeypatch.setattr(runs, "started", lambda *_: dict(self.settings))
        monkeypatch.setattr(runs, "run_puffer_mlx", self.ours)

    def ours(self, run: Any, place: Any, cores: set[int]) -> dict[str, Any]:
        self.made.append((run.name, run.seed))
        return {"score": float(len(self.made)), "steps": 100, "CPU s": 2.0, "curve": []}

    def work(self, out: Path, seeds: int, **how: Any) -> list[str]:
        said: list[str] = []
        work = runs.Work(runs.RunOptions(out, **how), said.append)
        work.do(runs.plan(["catch", "CartPole-v1"], [PUFFER_MLX], range(1, seeds + 1)))
        return said


@pytest.fixture
def fakes(monkeypatch):
    return Fakes(monkeypatch)


def test_finished_runs_are_not_repeated(tmp_path, fakes):
    both = ["catch", "CartPole-v1"]
    fakes.work(tmp_path, 2)
    fakes.work(tmp_path, 3)
    assert fakes.made == [(name, seed) for seed in (1, 2, 3) for name in both]
    fakes.work(tmp_path, 1, again=True)
    assert fakes.made[6:] == [(name, 1) for name in both]
    record = json.loads((tmp_path / "CartPole-v1.json").read_text())
    assert {seed: run["score"] for seed, run in record["seeds"].items()} == {"1": 8, "2": 4, "3": 6}
    assert record["settings"] == fakes.settings
    assert files(tmp_path) == {"catch.json", "CartPole-v1.json"}


def test_record_with_other_settings_is_replaced_only_on_request(tmp_path, fakes):
    fakes.work(tmp_path, 2)
    fakes.settings = {"train.gamma": "0.8"}
    before = (tmp_path / "catch.json").read_text()
    said = fakes.work(tmp_path, 3)
    assert len(fakes.made) == 4
    assert "catch.json was made with other settings: train.gamma 0.9, now 0.8" in said[0]
    assert (tmp_path / "catch.json").read_text() == before
    fakes.work(tmp_path, 1, again=True)
    record = json.loads((tmp_path / "catch.json").read_text())
    assert record["settings"] == fakes.settings and list(record["seeds"]) == ["1"]


# ---- nightly ------------------------------------------------------------------------------------


def test_nightly_expects_the_records_score_less_a_margin():
    curves = ([[100, 10.0], [200, 50.0], [300, 80.0]], [[100, 20.0], [200, 60.0], [300, 75.0]])
    record = {"seeds": {str(i): {"curve": curve} for i, curve in enumerate(curves, 1)}}
    assert nightly.required_score(record, 200, 0.2) == 50 - 0.2 * (50 - 15)
    assert nightly.required_score(record, 250, 0.0) == 65
    assert nightly.required_score(record, 1000, 0.5) == 75 - 0.5 * (75 - 15)


def test_nightly_score_is_weighted_by_episodes():
    records: list[dict[str, float]] = [
        {"agent_steps": 100 * i, "loss/total": 0, "env/n": i, "env/perf": i, "env/score_100": -i}
        for i in (1, 2, 3)
    ]
    records.append({"agent_steps": 300, "env/n": 9, "env/perf": 99})  # the evaluation
    assert nightly.final_score(records, "env/perf", 0) == (300, -3)
    assert nightly.final_score(records, "env/perf", 150) == (300, (4 + 9) / 5)
    assert runs.section_scores(records, "env/perf") == [[105, 1.0], [202.5, 2.0], [300, 3.0]]
    with pytest.raises(UserError, match="no episode ended"):
        nightly.final_score([{"agent_steps": 300, "loss/total": 0}], "env/perf", 100)


@pytest.fixture
def night(tmp_path, monkeypatch, capsys):
    """Return a function that runs the nightly learning benchmark with given final scores.

    The record says 100 at the end and 5 at first: at least 81 with a margin of 0.2.
    """
    write_record(tmp_path, "catch", s1=(100, 1))
    monkeypatch.setattr(nightly, "process", lambda *_: None)

    def run(scores: list[float], *words: str) -> tuple[int, str]:
        left = iter(scores)
        log = {"agent_steps": 1000, "loss/total": 0, "env/n": 2}
        monkeypatch.setattr(nightly, "log_of", lambda _: [{**log, "env/score": next(left)}])
        code = learning.main(["--nightly", "catch", "--out", str(tmp_path), *words])
        return code, capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("scores", "words", "code", "failed"),
    [
        ([82.0] * 3, (), 0, 0),
        ([80.0] * 3, (), 1, 3),
        ([90.0, 10.0, 90.0], ("--fail-share", "0.3"), 1, 1),
        ([90.0, 10.0, 90.0], ("--fail-share", "0.34"), 0, 1),
    ],
)
def test_nightly_fails_below_the_expected_score(night, scores, words, code, failed):
    found, out = night(scores, *words)
    assert found == code and out.endswith(f"{failed} of 3 seeds failed\n")
    assert "after 1,000 steps, expected at least " in out


def test_seeds_that_learned_too_little_failed(tmp_path, capsys):
    """The median learned 98 - 5 = 93: at least 98 - 0.2 * 93 = 79.4 is expected."""
    write_record(tmp_path, "catch", s1=(98, 1), s2=(100, 1), s3=(79, 1), s4=(80, 1), s5=(99, 1))
    assert table.fell_short(table.load(tmp_path)["catch", PUFFER_MLX]) == ["3"]
    assert not learning.too_many_failed(["catch"], tmp_path, 0.2)
    assert learning.too_many_failed(["catch"], tmp_path, 0.19)
    assert table.fell_short({"seeds": {"1": {"score": 3, "curve": []}}}) == []


# ---- the commands --------------------------------------------------------------------------------


@pytest.mark.slow
def test_learning_writes_a_record_a_picture_and_a_table(tmp_path):
    pytest.importorskip("gymnasium")
    words = ["CartPole-v1", "--seeds", 1, "--steps", 640, "--out", "kept", "--train.horizon", 16]
    words += ["--vec.total-agents", 4, "--train.minibatch-size", 32]
    done = benchmark("learning", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == {"kept/CartPole-v1.json", "kept-gym.png"}
    text = (tmp_path / "kept" / "CartPole-v1.json").read_text()
    assert str(tmp_path) not in text and str(ROOT) not in text
    run = json.loads(text)["seeds"]["1"]
    assert run["steps"] == 640 and run["curve"][-1][0] == 640
    assert run["score"] == pytest.approx(statistics.fmean(run["returns"]))
    shown = benchmark("learning", "--table", "--out", "kept", cwd=tmp_path)
    assert shown.returncode == 0 and "| CartPole-v1 ↓ |" in shown.stdout
