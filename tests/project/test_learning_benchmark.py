"""The benchmark of learning: its tasks, its records, its tables, and the night that can fail."""

import contextlib
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
PARTS = ("curves", "nightly", "peers", "processes", "runs", "table", "tasks", "zoo")
curves, nightly, peers, processes, runs, table, tasks, zoo = (
    importlib.import_module(f"learning_{part}") for part in PARTS
)
learning = importlib.import_module("learning")
OURS, SB3 = tasks.OURS, tasks.SB3


def write_record(folder: Path, name: str, trainer: str = OURS, **seeds: Any) -> None:
    """A record as learning_record.keep writes it; seeds: s1=(score, CPU s)."""
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
    (folder / f"{tasks.stem(name, trainer)}.json").write_text(json.dumps(record))


# ---- tasks ---------------------------------------------------------------------------------------


def test_a_tasks_settings_are_legal():
    """The night's, too; and every published score and setting belongs to a task."""
    for name, task in tasks.TASKS.items():
        environment, *words = runs.training(runs.Run(name, OURS, 3), runs.Place(Path()))
        settings = config.load(environment, words)
        assert (settings.base.seed, settings.vec.seed) == (3, 3000)
        if task.steps:
            assert settings.train.total_timesteps == task.steps
        if task.python:
            assert settings.base.eval_episodes == 0 and task.steps
        for given in task.peers.values():
            batch = given.get("n_envs", 1) * given.get("n_steps", 2048)
            assert batch % given.get("batch_size", 64) == 0
            assert json.loads(json.dumps(given)) == given
    assert set(zoo.PUBLISHED) <= set(tasks.IN_PYTHON)
    used = [peer for task in tasks.TASKS.values() for peer in task.peers.values()]
    assert all(settings in used for settings in zoo.SETTINGS.values())
    assert all(0 <= stop < (tasks.TASKS[n].steps or 10**9) for n, stop in nightly.STEPS.items())
    for name, greedy, backend in (("Ant-v5", True, "sync"), ("ALE/Pong-v5", False, "auto")):
        words = runs.evaluation(tasks.TASKS[name], "cpu")
        assert ("--greedy" in words, words[words.index("--vec.backend") + 1]) == (greedy, backend)


def test_seeds_of_training_and_evaluation_differ():
    plan = runs.plan(["CartPole-v1", "catch"], [OURS, SB3], range(1, 3))
    first = [("CartPole-v1", OURS, 1), ("CartPole-v1", SB3, 1), ("catch", OURS, 1)]
    assert plan == [*first, *(run._replace(seed=2) for run in map(runs.Run._make, first))]
    assert len(runs.plan(["catch"], [OURS], range(11, 13))) == 2
    for seeds in (range(0, 2), range(9, 11), range(9, 12)):
        with pytest.raises(UserError, match="expected 1 or more without 10"):
            runs.plan(["catch"], [OURS], seeds)


# ---- numbers -------------------------------------------------------------------------------------


def test_the_interval_is_that_of_all_resamples():
    """Of interquartile means: of five scores the middle three count."""
    assert table.interquartile_mean(np.array([[8.0, 1, 2, 4], [1, 1, 1, 5]])).tolist() == [3, 1]
    scores = [3.0, 7.0, 8.0, 12.0, 20.0]
    every = [sorted(drawn)[1:4] for drawn in itertools.product(scores, repeat=5)]
    low, high = np.quantile([statistics.fmean(middle) for middle in every], [0.025, 0.975])
    mean, *interval = table.interval(scores)
    assert mean == 9 and interval == pytest.approx([low, high], abs=0.4)
    assert table.interval([1.0]) is None


def test_probability_of_improvement_by_hand():
    pairs = [([1.0, 3.0], [2.0, 2.0]), ([5.0, 6.0], [5.0, 1.0])]  # 2 of 4; 3 and a half of 4
    mean, low, high = table.improvement(pairs)
    assert mean == pytest.approx((0.5 + 0.875) / 2)
    assert 0 <= low < mean < high <= 1
    assert table.improvement([([2.0, 3.0], [0.0, 1.0])]) == (1, 1, 1)


# ---- tables --------------------------------------------------------------------------------------


def test_tables_of_records(tmp_path):
    write_record(tmp_path, "Hopper-v5", s1=(1000, 1), s2=(3000, 2), s3=(2000, 4))
    write_record(tmp_path, "Hopper-v5", SB3, s1=(2500, 10), s2=(2400, 20), s3=(2600, 5))
    write_record(tmp_path, "CartPole-v1", s1=(500, 2), s2=(500, 2), s3=(500, 2))
    write_record(tmp_path, "catch", s1=(4.0, 2), s2=(5.0, 4), s3=(4.5, 2))
    write_record(tmp_path, "upstream-moba", s1=(0.88, 1), s2=(0.8, 1), s3=(0.96, 1))
    write_record(tmp_path, "partial-t_maze-MinGRU", s1=(4.0, 1), s2=(3.0, 1), s3=(4.0, 1))
    write_record(tmp_path, "partial-t_maze-RecurrentPPO-zoo", s1=(2.0, 10))
    text = table.tables(tmp_path)
    rows = [re.split(r" ?\| ?", line)[1:-1] for line in text.splitlines() if line[:1] == "|"]
    found = {row[0]: row[1:] for row in rows}
    hopper = found["Hopper-v5 ↓"]  # below RL Zoo's
    assert hopper[:2] == ["0.001 M", "2,000 (1,000 – 3,000); 1 failed"]
    assert hopper[2].startswith("2,000 [1,000, ")
    assert hopper[3] == "**2,500 (2,400 – 2,600)**" and hopper[5:] == ["2,410", "500", "100", "5"]
    assert found["CartPole-v1"][1] == "**500.0 (500.0 – 500.0)**"
    assert found["CartPole-v1"][3:] == ["–", "–", "500.0", "500", "–", "–"]
    assert found["catch"][1:3] == ["score", "4.50 (4.00 – 5.00)"] and found["catch"][-1] == "500"
    # the scores at 950 and 1000 of 1000 steps
    assert found["moba"][4:6] == ["0.858 (0.780 – 0.936)", "0.998 (0.986 – 1.000)"]
    assert ["", "steps", "MinGRU", "RecurrentPPO-zoo"] in rows
    assert found["t_maze"][1:] == ["4.00 (3.00 – 4.00); 1,000", "2.00; 100"]
    assert "mean over the 1 that both learned" in text and "probability of 0.33 [" in text
    assert "1 or 3 seeds" in text and "Gymnasium's environments, 3 seeds:" in text
    assert table.tables(tmp_path / "none") == "\n"


def test_tables_replace_what_lies_between_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"above\n{table.BEGIN}\nold\n{table.END}\nbelow\n")
    for _ in range(2):
        table.write("| new |\n", page)
        assert page.read_text() == f"above\n{table.BEGIN}\n\n| new |\n\n{table.END}\nbelow\n"
    for text in ("", f"{table.END}\n{table.BEGIN}\n", f"{table.BEGIN}\n" * 2 + table.END):
        page.write_text(text)
        with pytest.raises(UserError, match=r"page\.md has no place"):
            table.write("| new |\n", page)
        assert page.read_text() == text


def test_a_picture_says_only_what_was_measured(tmp_path):
    write_record(tmp_path, "Ant-v5", s1=(5.0, 10.0), s2=(6.0, 30.0))
    (record,) = table.load(tmp_path).values()
    assert curves.cost(record) == "20 s"
    for run in record["seeds"].values():
        del run["CPU s"]
    assert curves.cost(record) == ""


# ---- records -------------------------------------------------------------------------------------


class Fakes:
    """Runs that only count; those whose seed is in `broken` fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Any] = []
        self.broken: set[int] = set()
        self.error: Exception = UserError("broken", "mend it")
        self.settings = {"train.gamma": "0.9"}
        monkeypatch.setattr(runs, "started", lambda *_: dict(self.settings))
        monkeypatch.setattr(runs, "ours", self.ours)

    def ours(self, run: Any, place: Any, cores: set[int]) -> dict[str, Any]:
        self.made.append((run.name, run.seed))
        if run.seed in self.broken:
            raise self.error
        return {"score": float(len(self.made)), "steps": 100, "CPU s": 2.0, "curve": []}

    def work(self, out: Path, seeds: int, **how: Any) -> tuple[Any, list[str]]:
        said: list[str] = []
        work = runs.Work(runs.Place(out, **how), said.append)
        work.do(runs.plan(["catch", "CartPole-v1"], [OURS], range(1, seeds + 1)))
        return work, said


@pytest.fixture
def fakes(monkeypatch):
    return Fakes(monkeypatch)


def test_runs_that_are_there_are_left_out(tmp_path, fakes):
    both = ["catch", "CartPole-v1"]
    fakes.work(tmp_path, 2)
    assert fakes.made == [(name, seed) for seed in (1, 2) for name in both]
    fakes.work(tmp_path, 3)
    assert fakes.made[4:] == [(name, 3) for name in both]
    record = json.loads((tmp_path / "CartPole-v1.json").read_text())
    assert [run["score"] for run in record["seeds"].values()] == [2, 4, 6]
    assert record["settings"] == fakes.settings and list(record["seeds"]) == ["1", "2", "3"]
    assert record["command"].endswith("--eval-episodes 0 --seed N --vec.seed N000")
    fakes.work(tmp_path, 1, again=True)
    assert fakes.made[6:] == [(name, 1) for name in both]
    record = json.loads((tmp_path / "CartPole-v1.json").read_text())
    assert [run["score"] for run in record["seeds"].values()] == [8, 4, 6]
    assert files(tmp_path) == {"catch.json", "CartPole-v1.json"}


def test_a_run_that_fails_loses_nothing_else(tmp_path, fakes):
    fakes.broken = {2}
    for error in UserError("broken", "mend it"), KeyError("broken"):
        fakes.error = error
        work, said = fakes.work(tmp_path / type(error).__name__, 3)
        assert work.failed == ["catch puffer_mlx seed 2", "CartPole-v1 puffer_mlx seed 2"]
        assert any(re.search("seed 2 failed: .*broken", line) for line in said)
        for name in ("catch", "CartPole-v1"):
            path = tmp_path / type(error).__name__ / f"{name}.json"
            assert list(json.loads(path.read_text())["seeds"]) == ["1", "3"]
    fakes.made.clear()
    work, said = fakes.work(tmp_path, 2, max_seconds=-1.0)
    assert (fakes.made, work.failed) == ([], [])
    assert said == ["4 of 4 runs weren't begun in time; the same goes on"]


def test_other_settings_are_another_record(tmp_path, fakes):
    fakes.work(tmp_path, 2)
    fakes.settings = {"train.gamma": "0.8"}
    before = (tmp_path / "catch.json").read_text()
    work, said = fakes.work(tmp_path, 3)
    assert len(fakes.made) == 4 and len(work.failed) == 2
    assert "catch.json was made with other settings: train.gamma 0.9, now 0.8" in said[0]
    assert (tmp_path / "catch.json").read_text() == before
    fakes.work(tmp_path, 1, again=True)  # seed 2 was of the others
    record = json.loads((tmp_path / "catch.json").read_text())
    assert record["settings"] == fakes.settings and list(record["seeds"]) == ["1"]


@pytest.mark.skipif(sys.platform != "linux", reason="threads can't be bound here")
def test_cores_of_runs(monkeypatch):
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: {2, 3, 5, 7, 8})
    assert processes.cores_of(2, 2) == [{2, 3}, {5, 7}]
    assert processes.cores_of(5, 1) == [{2}, {3}, {5}, {7}, {8}]
    with pytest.raises(UserError, match="need 6 cores; there are 5"):
        processes.cores_of(3, 2)


# ---- a night -------------------------------------------------------------------------------------


def test_what_is_expected_by_hand():
    curves = ([[100, 10.0], [200, 50.0], [300, 80.0]], [[100, 20.0], [200, 60.0], [300, 75.0]])
    record = {"seeds": {str(i): {"curve": curve} for i, curve in enumerate(curves, 1)}}
    assert nightly.least(record, 200, 0.2) == 50 - 0.2 * (50 - 15)
    assert nightly.least(record, 250, 0.0) == 65
    assert nightly.least(record, 1000, 0.5) == 75 - 0.5 * (75 - 15)


def test_what_was_reached_by_hand():
    records: list[dict[str, float]] = [
        {"agent_steps": 100 * i, "loss/total": 0, "env/n": i, "env/perf": i, "env/score_100": -i}
        for i in (1, 2, 3)
    ]
    records.append({"agent_steps": 300, "env/n": 9, "env/perf": 99})  # the evaluation
    assert nightly.reached(records, "env/perf", 0) == (300, -3)
    assert nightly.reached(records, "env/perf", 150) == (300, (4 + 9) / 5)
    assert runs.parts(records, "env/perf") == [[105, 1.0], [202.5, 2.0], [300, 3.0]]
    with pytest.raises(UserError, match="no episode ended"):
        nightly.reached([{"agent_steps": 300, "loss/total": 0}], "env/perf", 100)


def test_a_night_fails_below_what_it_expects(tmp_path, monkeypatch, capsys):
    """The records say 100 at the end and 5 at first: at least 81 with a margin of 0.2."""
    write_record(tmp_path, "CartPole-v1", s1=(100, 1))
    write_record(tmp_path, "catch", s1=(100, 1))
    log = {"agent_steps": 1000, "loss/total": 0, "env/n": 2, "env/score": 90.0}
    monkeypatch.setattr(nightly, "process", lambda *_: None)
    words = ["--nightly", "CartPole-v1", "catch", "--out", str(tmp_path)]
    after = "after 1,000 steps, expected at least 81.00"
    for reached, word, failed in (81.0, "ok  ", 0), (79.0, "FAIL", 3):
        scores = ", ".join([f"{reached:.2f}"] * 3)
        monkeypatch.setattr(nightly, "log_of", lambda _, r=reached: [{**log, "env/score_100": r}])
        assert learning.main(words) == bool(failed)
        first, second = capsys.readouterr().out.splitlines()
        assert first == f"{word} CartPole-v1: {scores} {after}: {failed} of 3 seeds failed"
        assert second == f"ok   catch: 90.00, 90.00, 90.00 {after}: 0 of 3 seeds failed"
    assert learning.main([*words, "--margin", "-1"]) == 1  # more than the record has
    capsys.readouterr()
    for share, code in ("0.3", 1), ("0.34", 0):
        each = iter([90.0, 10.0, 90.0])
        monkeypatch.setattr(nightly, "log_of", lambda _, s=each: [{**log, "env/score": next(s)}])
        words = ["--nightly", "catch", "--out", str(tmp_path), "--fail-share", share]
        assert learning.main(words) == code
        assert capsys.readouterr().out.endswith("1 of 3 seeds failed\n")


def test_seeds_that_failed_by_hand(tmp_path, capsys):
    """The median learned 98 - 5 = 93: 98 - 0.2 * 93 = 79.4 is the least."""
    write_record(tmp_path, "catch", s1=(98, 1), s2=(100, 1), s3=(79, 1), s4=(80, 1), s5=(99, 1))
    assert table.fell_short(table.load(tmp_path)["catch", OURS]) == ["3"]
    assert "98.0 (79.0 – 100.0); 1 failed" in table.tables(tmp_path)
    assert not learning.too_many_failed(["catch"], tmp_path, 0.2)
    assert learning.too_many_failed(["catch"], tmp_path, 0.19)
    assert capsys.readouterr().out == "catch: 1 of 5 seeds failed (3)\n" * 2
    assert table.fell_short({"seeds": {"1": {"score": 3, "curve": []}}}) == []


# ---- all of it -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_small_run(tmp_path):
    pytest.importorskip("gymnasium")
    words = ["CartPole-v1", "--seeds", 1, "--steps", 640, "--out", "kept", "--train.horizon", 16]
    words += ["--vec.total-agents", 4, "--train.minibatch-size", 32]
    done = benchmark("learning", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == {"kept/CartPole-v1.json", "kept-gym.png"}
    text = (tmp_path / "kept" / "CartPole-v1.json").read_text()
    assert str(tmp_path) not in text and str(ROOT) not in text
    record = json.loads(text)
    made = record["seeds"]["1"]
    assert made["steps"] == 640 and made["CPU s"] > 0.2 and len(made["returns"]) == 100
    assert made["score"] == pytest.approx(statistics.fmean(made["returns"]))
    assert 1 < len(made["curve"]) <= 20 and made["curve"][-1][0] == 640
    assert record["settings"]["train.horizon"] == "16"
    words += ["--peers", sys.executable]  # this Python hasn't SB3
    again = benchmark("learning", *words, cwd=tmp_path)
    assert (again.returncode, again.stderr) == (1, "")
    assert "puffer_mlx" not in again.stdout and "CartPole-v1 sb3 seed 1 failed" in again.stdout
    assert (tmp_path / "kept" / "CartPole-v1.json").read_text() == text
    shown = benchmark("learning", "--table", "--out", "kept", cwd=tmp_path)
    assert shown.returncode == 0 and "| CartPole-v1 ↓ |" in shown.stdout


def test_words_that_do_nothing(tmp_path, capsys):
    for words, said in [
        ("--write", "--write needs --table"),
        ("--seeds 0", "at least 1"),
        ("catch --trainers sb3", "needs an interpreter of its own"),
        ("catch --trainers nobody", "no trainer nobody"),
        ("catch --jobs 4000", "need 4000 cores"),
        ("--nightly catch", "no record of catch to compare with"),
        ("--nightly Ant-v5", "Ant-v5 is none of the night's: CartPole-v1"),
        ("Nothing-v0", "no task Nothing-v0"),
        ("upstream-moba", "upstream-moba needs PufferLib"),
    ]:
        with contextlib.suppress(SystemExit):
            assert learning.main([*words.split(), "--out", str(tmp_path)]) == 2
        assert said in capsys.readouterr().err and not files(tmp_path)
    assert learning.names_of(["gym"], None) == list(tasks.IN_PYTHON)
    assert learning.names_of(["catch", "c"], None)[0] == "catch"
    assert learning.names_of(["upstream-moba"], tmp_path) == ["upstream-moba"]


# ---- many seeds ----------------------------------------------------------------------------------


def test_a_share_and_when_a_score_was_passed_by_hand():
    seeds = importlib.import_module("seeds")
    below, part, low, high = seeds.share(np.array([390.0, 600.0, 860.0, 861.0]), 600)
    assert (below, part) == (1, 0.25) and 0.04 < low < 0.05 and 0.69 < high < 0.70  # Wilson's
    records = [{"agent_steps": 10 * i, "env/n": i % 2, "env/score": 300.0 * i} for i in range(4)]
    assert seeds.passed(records, "env/score", 500) == 30  # at 20 no episode had ended
    assert seeds.passed(records, "env/score", 901) is None


@pytest.mark.slow
def test_many_seeds_are_scored_by_whole_episodes(tmp_path):
    """squared's episodes end within 16 steps: each of the 8 agents has one, scored -1 to 1."""
    words = ["squared", "--seeds", "2", "--agents", "8", "--bounds", "2", "--fail-share", "0.5"]
    words += ["--json", "kept.json", "--train.total-timesteps", "30_000", "--device", "cpu"]
    words += ["--vec.total-agents", "64", "--train.minibatch-size", "1024"]
    done = benchmark("seeds", *words, cwd=tmp_path)
    assert done.returncode == 1, done.stderr  # all are below 2
    assert "2 seeds, median" in done.stdout and "below 2: 2 of 2, 100.0 %" in done.stdout
    first, second = json.loads((tmp_path / "kept.json").read_text())["runs"]
    assert (first["seed"], second["seed"]) == (1001, 1002)
    assert (first["episodes"], first["unfinished"]) == (8, 0) and -1 <= first["score"] <= 1
    assert first["curve"] != second["curve"]
