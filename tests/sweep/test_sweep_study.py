"""A sweep's trials in Optuna: what is recorded, and that one which dies goes on as if it hadn't."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="pip install 'puffer-mlx[sweep]'")

import optuna
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import TrialState
from running import ROOT
from swept import (
    ABOUT,
    DEAD,
    SPACE,
    Formula,
    Nobody,
    drive,
    dying,
    formula,
    known,
    never,
    open_study,
    refuse,
    settings,
)

from puffer_mlx.errors import UserError
from puffer_mlx.sweep import curve
from puffer_mlx.sweep.child import Identity
from puffer_mlx.sweep.engine import opening, samplers, storage, study
from puffer_mlx.sweep.engine.driver import Driver, Limits
from puffer_mlx.sweep.engine.informed import Judges
from puffer_mlx.sweep.engine.samplers import make_sampler
from puffer_mlx.sweep.engine.study import POINT, RUN
from puffer_mlx.sweep.places import Place

COST = "train.total_timesteps"


# ---- what is recorded ----------------------------------------------------------------------------


def test_parameters_are_recorded_with_their_real_values(here):
    made = open_study("j.log", settings(max_runs=4, method="Random"))
    drive(made, settings(max_runs=4))
    for run in made.runs():
        gamma, horizon = run.distributions["train.gamma"], run.distributions["train.horizon"]
        assert gamma == FloatDistribution(0.8, 0.9999)
        assert horizon == IntDistribution(8, 512, log=True)
        assert run.params["train.horizon"] in {2**k for k in range(3, 10)}
        assert isinstance(run.params["env.frameskip"], int)
        assert run.values == list(formula(run.params)[-1][:2])


def test_the_first_run_has_the_configurations_own_values(here):
    made = open_study("j.log", settings(max_runs=2))
    drive(made, settings(max_runs=2))
    first, second = made.runs()
    assert first.params == {p.name: p.default for p in SPACE.parameters}
    assert second.params != first.params


def test_points_of_a_curve_are_trials_with_their_own_steps(here):
    made = open_study("j.log", settings(max_runs=3))
    drive(made, settings(max_runs=3))
    for run in made.runs():
        curve = formula(run.params)
        points = [t for t in made.trials() if t.user_attrs.get(RUN) == run.number]
        inside = [point for point in curve[:-1] if point.steps >= 1e4]  # the range's beginning
        assert [t.values for t in points] == [[p.score, p.cost] for p in inside]
        assert [t.params[COST] for t in points] == [int(p.steps) for p in inside]
        others = {k: v for k, v in run.params.items() if k != COST}
        assert all({**t.params, COST: 0} == {**others, COST: 0} for t in points)


def test_a_run_that_is_ended_early_tells_its_curve(here):
    made = open_study("j.log", settings(max_runs=1))
    drive(made, settings(max_runs=1), judge=lambda: lambda points: "too little")
    (run,) = made.runs()
    assert run.state == TrialState.PRUNED and run.user_attrs["stopped"] == "too little"
    points = [t for t in made.trials() if RUN in t.user_attrs]
    assert [t.user_attrs[POINT] for t in points] == [0, 1]
    assert made.best() is None and made.front() == []


def test_a_goal_to_minimise(here):
    made = open_study("j.log", settings(max_runs=5, goal="minimize"))
    drive(made, settings(max_runs=5))
    best = made.best()
    assert best and best.values[0] == min(run.values[0] for run in made.runs())
    front = made.front()
    assert front[-1].number == best.number
    assert [r.values[0] for r in front] == sorted([r.values[0] for r in front], reverse=True)
    assert [r.values[1] for r in front] == sorted(r.values[1] for r in front)


# ---- failures ------------------------------------------------------------------------------------


def test_failures_are_kept_and_do_not_count(here):
    made = open_study("j.log", settings())
    numbers = iter(range(100))

    def start(run, place, seed):
        return Formula(run, place, fault="broken" if next(numbers) % 2 else "")

    told = drive(made, settings(max_runs=3), start)
    assert [run.state.name for run in told.over] == ["COMPLETE", "FAIL"] * 2 + ["COMPLETE"]
    assert {r.user_attrs["fault"] for r in made.runs(TrialState.FAIL)} == {"broken"}


def test_a_sweep_of_which_nothing_comes_ends(here):
    made = open_study("j.log", settings())
    with pytest.raises(UserError, match="the last 4 runs failed; run 4: broken"):
        start = lambda run, place, seed: Formula(run, place, fault="broken")  # noqa: E731
        drive(made, settings(), start, limits=Limits(9, failures=4))
    assert len(made.runs(TrialState.FAIL)) == 4


def test_suggestions_that_cannot_be_run_are_failures(here):
    made = open_study("j.log", settings())
    with pytest.raises(UserError, match="the last 5 suggestions can't be run; run 5: not started"):
        drive(made, settings(), refuse, limits=Limits(9, invalid=5))
    faults = {run.user_attrs["fault"] for run in made.runs(TrialState.FAIL)}
    assert faults == {"not started: no such thing; another"}


# ---- dying ---------------------------------------------------------------------------------------


def own(*process):
    return lambda: list(process)


@pytest.mark.parametrize("method", ["Protein", "ParetoGenetic", "Random", "TPE", "NSGAII"])
def test_suggestions_after_a_death_are_those_of_an_uninterrupted_sweep(here, method):
    how = settings(method=method, max_runs=7)
    whole = open_study("whole.log", how)
    drive(whole, how)
    for runs in (2, 5, 7):  # a process each, which knows what is in the file alone
        drive(open_study("parts.log", how), settings(max_runs=runs))
    assert known(open_study("parts.log", how)) == known(whole)
    drive(open_study("other.log", how, seed=2), how)
    assert known(open_study("other.log", how)) != known(whole)


def test_a_sweep_may_die_at_any_moment(here, monkeypatch):
    """At each of its writes: the run under way is done again, and nothing else is."""
    how = settings(method="Random", max_runs=3)
    whole = open_study("whole.log", how)
    drive(whole, how)
    writes = len(Path("whole.log").read_text().splitlines())
    assert writes > 30
    for last in range(9, writes):  # the study itself is there
        path = f"{last}.log"
        with dying(monkeypatch, last):
            drive(open_study(path, how), how)
        with monkeypatch.context() as patch:
            patch.setattr("puffer_mlx.sweep.engine.driver.own_name", own("this machine", 1, 1.0))
            patch.setattr("puffer_mlx.sweep.engine.driver.YOUNG", 0.0)
            drive(open_study(path, how), how)
        assert known(open_study(path, how)) == known(whole), last


def test_runs_of_the_living_and_of_other_machines_are_theirs(here, monkeypatch):
    how = settings(method="Random", max_runs=1)
    for owner, mine in (
        (["another machine", *DEAD[1:]], False),
        (["this machine", *Identity.of(os.getpid())], False),
        (["this machine", os.getpid(), 1.0], True),  # its number is another process's now
    ):
        path = f"{owner[1]}{mine}{owner[0]}.log"
        monkeypatch.setattr(samplers, "own_name", own(*owner))
        made = open_study(path, how)
        made.ask()
        monkeypatch.setattr("puffer_mlx.sweep.engine.driver.own_name", own("this machine", 1, 1.0))
        drive(open_study(path, how), how)
        (run,) = made.runs()
        assert run.state.name == ("COMPLETE" if mine else "RUNNING")
        assert run.user_attrs["owner"] == (study.own_name() if mine else owner)


def test_what_the_dead_have_left_is_taken_over_once(here, monkeypatch):
    how = settings(method="Random", max_runs=2)
    made = open_study("j.log", how)
    with monkeypatch.context() as patch:
        patch.setattr(samplers, "own_name", own(study.own_name()[0], *DEAD[1:]))
        numbers = [made.ask().number for _ in range(2)]
    drivers = [
        Driver(open_study("j.log", how), Formula, [Place()], Limits(2), Nobody(), never)
        for _ in range(2)
    ]
    left = [[run.number for run in driver.orphans()] for driver in drivers]
    assert left == [numbers, []]


KILLED = """
import os, signal, sys
sys.path[:0] = [sys.argv[1]]
from swept import *
how = settings(max_runs=6)
starts = iter(range(100))
def start(run, place, seed):
    if next(starts) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return Formula(run, place)
drive(open_study("killed.log", how), how, start)
"""


def test_kill_9(here):
    words = [sys.executable, "-c", KILLED, str(ROOT / "tests")]
    done = subprocess.run(words, cwd=here, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == -signal.SIGKILL
    how = settings(max_runs=6)
    left = open_study("killed.log", how)
    assert [run.state.name for run in left.runs()] == ["COMPLETE"] * 4 + ["RUNNING"]
    drive(left, how)
    whole = open_study("whole.log", how)
    drive(whole, how)
    assert known(left) == known(whole)


# ---- several processes ---------------------------------------------------------------------------

WORKER = """
import sys, time
sys.path[:0] = [sys.argv[1]]
from swept import *
how = settings(max_runs=12)
def start(run, place, seed):
    time.sleep(0.05)
    return Formula(run, place)
drive(open_study("shared.log", how), how, start)
"""


def test_two_processes_share_a_journal(here):
    words = [sys.executable, "-c", WORKER, str(ROOT / "tests")]
    how = {"cwd": here, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    both = [subprocess.Popen(words, **how) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    runs = open_study("shared.log", settings()).runs()
    assert {run.state for run in runs} == {TrialState.COMPLETE}
    assert 12 <= len(runs) <= 13  # each looks before it begins one
    assert sum("default" in run.user_attrs for run in runs) == 1
    assert len({tuple(run.params.values()) for run in runs}) == len(runs)


# ---- several runs at once ------------------------------------------------------------------------


def test_runs_at_once_are_as_many_as_there_are_places(here):
    made = open_study("j.log", settings(max_runs=9))
    going, most = set(), []

    class Slow(Formula):
        looks = 0

        def outcome(self):
            self.looks += 1
            if self.looks < 3 + self.place.number:
                return None
            going.discard(self.place)
            return super().outcome()

    def start(run, place, seed):
        assert place not in going
        going.add(place)
        most.append(len(going))
        return Slow(run, place)

    drive(made, settings(max_runs=9), start, places=[Place(0), Place(1), Place(2)])
    assert max(most) == 3 and len(made.runs(TrialState.COMPLETE)) == 9


def test_what_is_under_way_is_ended_when_the_sweep_is(here):
    made = open_study("j.log", settings())
    began = []

    class Endless(Formula):
        def outcome(self):
            if len(began) == 2:
                raise KeyboardInterrupt
            return None

    def start(run, place, seed):
        began.append(Endless(run, place))
        return began[-1]

    with pytest.raises(KeyboardInterrupt):
        drive(made, settings(), start, places=[Place(0), Place(1)])
    assert [run.ends for run in began] == [["ended"], ["ended"]]
    assert {run.state for run in made.runs()} == {TrialState.RUNNING}  # --resume begins them again


# ---- early stopping ------------------------------------------------------------------------------


def test_a_run_below_what_its_cost_buys_is_ended(here):
    how = settings(max_runs=20, downsample=3, method="Random", early_stop_quantile=0.3)
    made = open_study("j.log", how)
    drive(made, how)  # at least 30 points
    judge = Judges(made, SPACE, how)()
    best = made.best()
    assert best
    dear = 2 * max(run.values[1] for run in made.runs()) + 100
    assert judge([curve.Point(best.values[0], dear, 1.0)]) == ""
    worst = min(run.values[0] for run in made.runs()) - 1
    many = [curve.Point(worst, dear, 1.0)] * 60
    assert "is less than other runs had" in judge(many)
    assert Judges(made, SPACE, settings(early_stop_quantile=0))()(many) == ""


# ---- other studies -------------------------------------------------------------------------------


def test_a_study_of_other_things_is_refused(here):
    how = settings()
    sampler = make_sampler(SPACE, how, 1, lambda values: values)
    opened = storage.open_storage("j.log")
    asked = opening.Asked("one", SPACE, how, {"env": "breakout", "train.gamma": 0.9}, sampler)
    opening.begin(opened, asked)
    with pytest.raises(UserError, match=r"train\.gamma was 0\.9, and is 0\.5"):
        now = {"env": "breakout", "train.gamma": 0.5}
        opening.go_on(opened, asked._replace(about=now))
    more = {"env": "breakout", "train.gamma": 0.9, "train.new": 1}  # a later version's key
    assert opening.go_on(opened, asked._replace(about=more)).runs()
    optuna.create_study(storage=opened, study_name="theirs")
    with pytest.raises(UserError, match="theirs is no sweep of puffer_mlx"):
        opening.about(opened, "theirs", patience=0)
    assert opening.about(opened, "none") is None and ABOUT


def test_a_study_that_another_process_has_just_begun(here, monkeypatch):
    first = open_study("j.log", settings())
    monkeypatch.setattr(opening, "about", lambda storage, name: None if not seen else ABOUT)
    seen: list[str] = []
    begin = opening.begin

    def late(*how):
        seen.append("tried")
        return begin(*how)

    monkeypatch.setattr(opening, "begin", late)
    second = open_study("j.log", settings())
    assert seen and [run.number for run in second.runs()] == [run.number for run in first.runs()]
