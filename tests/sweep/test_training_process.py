"""A run of a sweep as a process: its curve, how it ends, and its cores and GPUs."""

import json
import math
import os
import shutil
import stat
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from running import wait_until
from swept import settings

from puffer_mlx.errors import UserError
from puffer_mlx.sweep import training_process
from puffer_mlx.sweep.curve import (
    CurveReader,
    Outcome,
    Point,
    SeedScores,
    combine_curves,
    combine_scores,
    is_beaten,
    mean_points,
    seed_noise,
)
from puffer_mlx.sweep.observations import Observations
from puffer_mlx.sweep.training_process import (
    VISIBLE_GPUS,
    ProcessIdentity,
    Slot,
    TrainingProcess,
    available_cores,
    available_gpus,
    make_slots,
)

SCORE = "env/score"


@pytest.fixture
def log(tmp_path):
    with closing(CurveReader(tmp_path / "logs", SCORE)) as log:
        yield log


def record(epoch: int, score: float | None = None, **more: float) -> str:
    values = {"epoch": epoch, "agent_steps": 100 * epoch, "uptime": 2.0 * epoch, **more}
    return json.dumps(values | ({SCORE: score} if score is not None else {})) + "\n"


# ---- curves --------------------------------------------------------------------------------------


def test_curve_is_means_of_parts_and_the_result(log, tmp_path):
    path = tmp_path / "logs" / "1.jsonl"
    path.parent.mkdir()
    assert log.new_points() == [] and log.curve(5) == []
    path.write_text(record(1) + record(2, 1.0) + record(3, 2.0)[:-9])
    assert log.new_points() == [Point(1.0, 4.0, 200)]  # half a line is none yet
    path.write_text("".join([record(1), *(record(i, i - 1.0) for i in range(2, 9)), record(9)]))
    assert len(log.new_points()) == 6
    # Two parts of 9 epochs, 900 steps, end with the first record at 450 and 900 steps or more. The
    # first has epochs 2 to 5: scores 1, 2, 3, 4, mean 2.5; 350 steps, 7 s. No score at 900.
    assert log.curve(3) == [Point(2.5, 7.0, 350), Point(7.0, 18.0, 900)]
    assert log.curve(1) == [Point(7.0, 18.0, 900)]
    with open(path, "a") as file:
        file.write(json.dumps({"agent_steps": 1000, SCORE: 8.5}) + "\n")
    assert log.new_points() == [] and log.curve(1) == [
        Point(8.5, 18.0, 900)
    ]  # the evaluation's score


def test_parts_of_a_run_end_with_the_point_that_reaches_them():
    """800 steps in 4 parts end at 200, 400, 600 and 800."""
    scores = {2: 1.0, 3: 2.0, 4: 6.0, 6: 3.0, 7: 4.0, 8: 8.0}
    points = [Point(score, 2 * epoch, 100 * epoch) for epoch, score in scores.items()]
    parts = mean_points(points, 800, 4)
    assert parts == [Point(1, 4, 200), Point(4, 7, 350), Point(3, 12, 600), Point(6, 15, 750)]
    assert len(mean_points(points[:2], 200, 4)) == 2  # one point ends one part at most


def test_torn_line_of_a_log_is_skipped_and_noted(log, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "1.jsonl").write_text(record(1, 1.0) + "{ \n" + record(2, 2.0))
    assert [point.score for point in log.new_points()] == [1.0, 2.0]
    assert (log.error, log.skipped_note) == ("", "a line of its log isn't a record: '{ '")


def test_curves_of_several_seeds_are_matched_from_their_ends():
    assert combine_scores([1, 2, 6], "mean") == 3 and combine_scores([1, 2, 6], "median") == 2
    assert (
        combine_scores([1, 2, 6], "worst") == 1 and combine_scores([1, 2, 6], "worst", sign=-1) == 6
    )
    short = [Point(4, 10, 100), Point(6, 20, 200)]
    long = [Point(0, 4, 40), Point(2, 12, 100), Point(3, 24, 200)]
    assert combine_curves([short, long], "mean") == [Point(3, 11, 100), Point(4.5, 22, 200)]
    assert combine_curves([short, long], "worst") == [Point(2, 11, 100), Point(3, 22, 200)]


def test_noise_is_the_median_of_deviations():
    assert seed_noise([SeedScores([1], 1)]) == 0
    # Deviations of two numbers are their distance over the square root of two.
    several = [
        SeedScores([1], 1),
        SeedScores([0, 2], 1),
        SeedScores([0, 4], 1),
        SeedScores([0, 100], 1),
    ]
    assert seed_noise(several) == pytest.approx(4 / math.sqrt(2))


BEATEN = {  # score, cost, noise, enough
    (9.0, 10, 1.5, math.inf): False,  # better than 8 after 5 s
    (7.0, 10, 1.5, math.inf): False,  # 8 is within the noise
    (6.5, 10, 1.5, math.inf): True,
    (6.5, 4, 1.5, math.inf): False,  # nothing is as cheap
    (6.5, 5, 1.5, math.inf): True,
    (8.0, 10, 5.0, 8.0): True,  # more than enough: the cheaper one is better
    (8.0, 4, 5.0, 8.0): False,
}


def test_run_is_beaten_by_a_better_one_that_is_as_cheap():
    rivals = [SeedScores([7.0, 9.0], 5.0), SeedScores([1.0], 1.0)]
    found = {
        case: is_beaten(SeedScores([case[0]], case[1]), rivals, "mean", *case[2:])
        for case in BEATEN
    }
    assert found == BEATEN


def test_score_above_the_target_counts_as_the_target():
    how = settings(target_score=5.0)
    assert [how.objective(x) for x in (4, 5, 9)] == [4, 5, 5]
    less = settings(target_score=5.0, goal="minimize")
    assert [less.objective(x) for x in (9, 5, 4)] == [-9, -5, -5]
    assert [Observations(less).stored_score(x) for x in (9, 4)] == [-9, -5]
    logit = settings(target_score=0.5, metric_distribution="percentile")
    assert Observations(logit).stored_score(0.9) == Observations(logit).stored_score(0.5) == 0


# ---- processes -----------------------------------------------------------------------------------

ANY_SLOT = Slot()
GOOD = record(1, 1.0) + record(2, 3.0)
NAN = record(1, math.nan).replace("NaN", "null")
CURVE = [Point(2.0, 3.0, 150), Point(3.0, 4.0, 200)]  # the mean, and the result


def started(
    here: Path, monkeypatch, script: str, log: str = "", hang: float = 60, slot: Slot = ANY_SLOT
) -> TrainingProcess:
    """Start a sweep's training process whose program is a shell script."""
    program = here / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(training_process, "STOP_TIMEOUT", 1.0)
    (here / "run" / "logs").mkdir(parents=True)
    (here / "run" / "logs" / "1.jsonl").write_text(log)
    return TrainingProcess(["squared"], here / "run", slot, SCORE, 2, hang)


def ended(run: TrainingProcess) -> Outcome:
    deadline = time.monotonic() + 60
    while (outcome := run.outcome()) is None:
        assert time.monotonic() < deadline
        run.poll()
        time.sleep(0.02)
    return outcome


def inner(here: Path) -> ProcessIdentity:
    """Return the child process that a run's script started; its output names the id."""
    output = here / "run" / "output.txt"
    wait_until(lambda: output.read_text().strip())
    return ProcessIdentity.of(int(output.read_text()))


def test_run_that_succeeds_has_its_curve(here, monkeypatch):
    run = started(here, monkeypatch, 'echo "$@"', GOOD)
    assert ended(run) == Outcome(CURVE)
    assert (here / "run" / "output.txt").read_text() == "-P -m puffer_mlx train squared -q\n"


@pytest.mark.parametrize(
    ("script", "log", "said"),
    [
        ("echo x; echo 'error: no\n  hint: yes' >&2; exit 2", GOOD, "no; hint: yes"),
        ("echo first; echo Traceback; echo KeyError: 3; exit 1", GOOD, "KeyError: 3 (exit code 1"),
        ("kill -9 $$", GOOD, "ended by SIGKILL; possibly out of memory"),
        ("exit 0", record(1), "no record has env/score"),
        ("sleep 100", NAN, "env/score is not a finite number after 100 steps"),
    ],
)
def test_run_that_fails_reports_the_reason(here, monkeypatch, script, log, said):
    outcome = ended(started(here, monkeypatch, script, log))
    assert outcome.points == [] and said in outcome.error


def test_run_whose_folder_is_removed_fails(here, monkeypatch):
    run = started(here, monkeypatch, "sleep 0.1; exit 3", GOOD)
    shutil.rmtree(here / "run")
    assert ended(run).error.startswith("no output (exit code 3")


def test_run_that_hangs_is_ended(here, monkeypatch):
    run = started(here, monkeypatch, "trap '' TERM; sleep 1000 & wait; sleep 1000", GOOD, hang=0.3)
    assert ended(run).error == "it hung: no new record for 0.3 seconds"
    assert run.identity.find_process() is None


def test_run_whose_log_is_touched_does_not_hang(here, monkeypatch):
    """As an evaluation does, which records nothing."""
    now = [0.0]
    monkeypatch.setattr(training_process.time, "monotonic", lambda: now[0])
    run = started(here, monkeypatch, "exec sleep 1000", GOOD, hang=10)
    log = here / "run" / "logs" / "1.jsonl"
    for now[0] in (0.0, 9.0, 18.0, 27.0):
        os.utime(log, (now[0] + 1, now[0] + 1))
        run.poll()
        assert run.outcome() is None
    run.end()


def test_run_that_is_stopped_early_keeps_its_curve(here, monkeypatch):
    script = "trap 'exit 0' TERM; sleep 1000 & echo $!; wait"
    run = started(here, monkeypatch, script, GOOD)
    worker = inner(here)
    run.poll()
    run.stop("too little")
    assert ended(run) == Outcome(CURVE, "", "too little")
    wait_until(lambda: worker.find_process() is None)  # the process that it had started


def test_modules_of_the_working_folder_replace_none_of_pythons(here):
    (here / "random.py").write_text('open("ran", "w").close()\n')
    (here / "mine.py").write_text("")
    run = TrainingProcess(["mine:make", "--device", "cpu"], here / "run", Slot(), SCORE, 2, 60)
    assert ended(run).error.startswith("mine:make: mine has no make; ")
    assert not (here / "ran").exists()


def test_process_with_another_start_time_is_another_process():
    this = ProcessIdentity.of(os.getpid())
    assert this.find_process()
    other = this._replace(started_at=this.started_at - 100)
    assert other.find_process() is None and not other.end()  # and this process lives
    assert ProcessIdentity(2**22 + 1, 0.0).find_process() is None


# ---- slots --------------------------------------------------------------------------------------


def test_runs_divide_cores_and_gpus():
    assert make_slots(0, [0, 1, 2, 3]) == make_slots(1, range(4)) == [Slot()]
    two = make_slots(2, [0, 1, 2, 5, 6])
    assert [slot.cores for slot in two] == [(0, 1), (2, 5)]
    assert two[1].options == ["--vec.max-threads", "2"]
    assert two[1].environment()["OPENBLAS_NUM_THREADS"] == "2"
    gpus = make_slots(0, range(8), ["3", "4", "7", "9", "10"], gpus_per_run=2)
    assert [slot.gpus for slot in gpus] == [("3", "4"), ("7", "9")]
    assert [slot.cores for slot in gpus] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert gpus[0].environment()[VISIBLE_GPUS] == "3,4"


@pytest.mark.parametrize(
    ("runs", "gpus", "each", "said"),
    [
        (9, [], 1, "--parallel 9 runs don't fit 8 cores"),
        (0, ["0"], 2, "a run takes 2 GPUs, and there are 1"),
    ],
)
def test_runs_that_do_not_fit_are_refused(runs, gpus, each, said):
    with pytest.raises(UserError, match=said):
        make_slots(runs, range(8), gpus, each)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a Mac's cores can't be chosen")
def test_run_uses_only_its_cores(here, monkeypatch):
    before = available_cores()
    slot = Slot(1, (before[-1],), (), 1)
    run = started(here, monkeypatch, "grep Cpus_allowed_list /proc/self/status", slot=slot)
    ended(run)
    assert (here / "run" / "output.txt").read_text().split()[-1] == str(before[-1])
    assert available_cores() == before


def test_visible_gpus_are_used(monkeypatch):
    monkeypatch.setenv(VISIBLE_GPUS, "2, 5")
    assert available_gpus() == ["2", "5"]
