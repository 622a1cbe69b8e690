"""A sweep's trials in Optuna: what is recorded, and that a sweep which dies can be resumed."""

import os
import signal
import subprocess
import sys
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

pytest.importorskip("optuna", reason="pip install 'puffer-mlx[sweep]'")

import numpy as np
import optuna
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import TrialState
from running import ROOT
from swept import (
    ABOUT,
    DEAD,
    SPACE,
    Formula,
    drive,
    dying,
    formula,
    known,
    open_study,
    refuse,
    settings,
)

from puffer_mlx.errors import UserError
from puffer_mlx.sweep.curve import Outcome, Point
from puffer_mlx.sweep.engine import samplers, storage, study
from puffer_mlx.sweep.engine.study import HELD_OUT_PREFIX, POINT_INDEX, RUN_NUMBER, seed_curves
from puffer_mlx.sweep.settings import HELD_OUT_OFFSET, TOP_RUNS
from puffer_mlx.sweep.space import Parameter, Space
from puffer_mlx.sweep.training_process import ProcessIdentity, Slot
from puffer_mlx.system import signals

TIMESTEPS = "train.total_timesteps"
DRIVER = "puffer_mlx.sweep.engine.driver"


def score_of_seed(run, seed):
    """Return the noise within ±0.25 that a seed adds to a sweep run's score."""
    return (zlib.crc32(f"{sorted(run.params.items())} {seed}".encode()) % 1000 - 500) / 2000


@dataclass
class Lucky(Formula):
    """Stub of a sweep's run whose score also depends on its seed."""

    def outcome(self):
        outcome = super().outcome()
        assert outcome
        more = score_of_seed(self.trial, self.seed)
        points = [Point(p.score + more, p.cost, p.steps) for p in outcome.points]
        return Outcome(points, outcome.error, outcome.stop_reason)


def seeded(**more):
    return settings(**{"seeds": 3, "method": "Random", "max_runs": 12, **more})


def swept(how, start: Any = Formula, path="j.log", **more):
    """Run a sweep to its end; return the study."""
    sweep = open_study(path, how)
    drive(sweep, how, start, **more)
    return sweep


def held_out_of(sweep, run):
    """Return the scores of a sweep run on held-out seeds, by seed."""
    known = sweep.optuna_study.user_attrs.items()
    words = f"{HELD_OUT_PREFIX} {run.number} "
    known = {int(name[len(words) :]): each for name, each in known if name.startswith(words)}
    return {i: each["score"] for i, each in sorted(known.items()) if "score" in each}


def best_of(sweep):
    best = sweep.best()
    assert best
    return best


def points_of(sweep, run):
    return [trial for trial in sweep.trials() if trial.user_attrs.get(RUN_NUMBER) == run.number]


# ---- what is recorded ----------------------------------------------------------------------------


def test_default_of_zero_on_a_logarithmic_scale_is_recorded_as_the_ranges_end(here):
    """The first run is trained with 0, but Optuna's trials need a logarithm."""
    zeros = [
        Parameter("train", "ent_coef", "log_normal", 1e-5, 0.2, default=0.0),
        Parameter("train", "eps", "uniform_pow2", 0.25, 4.0, default=0.0),
        Parameter("env", "lives", "uniform_pow2", 1, 8, integer=True, default=0.0),
    ]
    how = settings(max_runs=4, method="NSGAII")
    sweep = open_study("j.log", how, space=Space([*SPACE.parameters, *zeros]))
    assert len(drive(sweep, how)) == 4
    first = sweep.runs()[0]
    assert [first.params[p.name] for p in zeros] == [1e-5, 0.25, 1]
    assert len(points_of(sweep, first)) == 2
    assert first.user_attrs["default"]


def test_runs_and_their_points_are_trials(here):
    sweep = swept(settings(max_runs=4, method="Random"), Lucky)
    first, *others = sweep.runs()
    assert first.params == {p.name: p.default for p in SPACE.parameters}
    assert all(run.params != first.params for run in others)
    for run in sweep.runs():
        gamma, horizon = run.distributions["train.gamma"], run.distributions["train.horizon"]
        assert gamma == FloatDistribution(0.8, 0.9999)
        assert horizon == IntDistribution(8, 512, log=True)
        assert run.params["train.horizon"] in {2**k for k in range(3, 10)}
        assert isinstance(run.params["env.frameskip"], int)
        *inside, last = formula(run.params)
        assert run.values == [last.score + score_of_seed(run, 0), last.cost]
        inside = [point for point in inside if point.steps >= 1e4]  # the range's beginning
        points = points_of(sweep, run)
        assert [t.values for t in points] == [
            [p.score + score_of_seed(run, 0), p.cost] for p in inside
        ]
        assert [t.params[TIMESTEPS] for t in points] == [int(p.steps) for p in inside]
        assert all({**t.params, TIMESTEPS: 0} == {**run.params, TIMESTEPS: 0} for t in points)


def test_best_run_is_the_best_score_or_the_cheapest_that_reaches_the_target(here):
    sweep = swept(settings(max_runs=5, goal="minimize"))
    assert best_of(sweep).values[0] == min(run.values[0] for run in sweep.runs())
    # The cheapest run that reaches a target is best.
    sweep = swept(settings(method="Random", max_runs=12, target_score=2.5), path="target.log")
    reach = [run for run in sweep.runs() if run.values[0] >= 2.5]
    best = best_of(sweep)
    assert len(reach) > 1
    assert best.values[1] == min(run.values[1] for run in reach)
    assert best.values[0] < max(run.values[0] for run in reach)


# ---- seeds ---------------------------------------------------------------------------------------


def test_only_promising_runs_get_further_seeds(here):
    how = seeded()
    sweep = open_study("j.log", how)
    over = drive(sweep, how, Lucky)
    counts = [len(seed_curves(run)) for run in sweep.runs()]
    assert {1, 3} <= {*counts} <= {1, 2, 3} and counts[0] == 3  # nothing rivals the first
    assert 12 <= sum(counts) == sweep.count_trained(TrialState.COMPLETE) <= 14
    assert [run.number for run in over] == [run.number for run in sweep.runs()]
    for run in sweep.runs():
        end = formula(run.params)[-1]
        scores = [end.score + score_of_seed(run, seed) for seed in range(len(seed_curves(run)))]
        assert run.values == pytest.approx([fmean(scores), end.cost])
    assert best_of(sweep).values[0] == max(
        r.values[0] for r in sweep.runs() if len(seed_curves(r)) == 3
    )


# ---- held-out seeds ------------------------------------------------------------------------------


def confirming(scores, events, faults=()):
    """Return a function that starts stub runs with given scores, by number.

    A pair: the search's score, and the held-out one, to which the seed's number is added.
    """

    class Known(Formula):
        def outcome(self):
            number, seed = self.trial.number, self.seed
            events.append((number, seed))
            if (number, seed - HELD_OUT_OFFSET) in faults:
                return Outcome([], "it broke")
            searched, held_out = scores[number]
            held_out += seed - HELD_OUT_OFFSET
            score = searched if seed < HELD_OUT_OFFSET else held_out
            return Outcome([Point(score, 10.0, 1e5)])

    return lambda run, slot, seed: Known(run, slot, seed)


SCORES = [(5, 4), (9, 2), (7, 6), (1, 50), (6, 3)]  # the best of the search was lucky


def held(**more):
    return settings(**{"method": "Random", "max_runs": 5, "downsample": 1, "confirm": 3, **more})


def test_best_few_are_trained_with_seeds_that_the_search_never_used(here):
    events = []
    sweep = swept(held(), confirming(SCORES, events))
    few = [1, 2, 4]
    assert [run.number for run in sweep.top_runs()] == few and TOP_RUNS == 3
    assert events[:5] == [(i, 0) for i in range(5)]  # after the last run
    assert events[5:] == [(i, HELD_OUT_OFFSET + seed) for seed in range(3) for i in few]
    assert (
        sweep.count_trained(*study.FINISHED_STATES) == 5 and len(sweep.trials()) == 5
    )  # none of the search's
    assert sweep.held_out_results(sweep.runs()[1]) == ([2, 3, 4], 0)
    assert sweep.held_out_results(sweep.runs()[0]) == ([], 0)
    best = best_of(sweep)
    assert best.number == 2 and best.values[0] == 7
    assert sweep.held_out_results(best).summary() == "median 7, lowest 6 of 3"
    assert sweep.held_out_results(best).summary(-1) == "median 7, highest 8 of 3"
    said = "run 2, was lucky: its score in the search was 9, with held-out seeds median 3,"
    assert sweep.winner_warning() == f"the search's winner, {said} lowest 2 of 3; run 3 is better"
    drive(sweep, held(), confirming(SCORES, events))
    assert len(events) == 14  # once


@pytest.mark.parametrize(
    ("scores", "best", "said"),
    [
        ([(9, 4), (1, 0)], 0, "median 5, lowest 4 of 3"),
        ([(6, 4), (1, 0)], 0, ""),
        ([(9, 9), (8, 20)], 1, "with held-out seeds median 10, lowest 9 of 3; run 2 is better"),
    ],
    ids=["lucky", "reached", "beaten"],
)
def test_winner_that_no_held_out_seed_comes_up_to_was_lucky(here, scores, best, said):
    sweep = swept(held(max_runs=2), confirming(scores, []))
    assert best_of(sweep).number == best
    assert sweep.winner_warning().endswith(said) and bool(sweep.winner_warning()) == bool(said)


def test_confirmed_runs_are_the_lowest_where_less_is_better(here):
    sweep = swept(held(goal="minimize"), confirming(SCORES, []))
    assert [run.number for run in sweep.top_runs()] == [3, 0, 4] and best_of(sweep).number == 4


def test_best_run_by_held_out_seeds_uses_the_seeds_score_and_the_target(here):
    start = confirming([(9, 4), (8, 4)], [], {(0, 0)})
    sweep = swept(held(max_runs=2), start)
    assert (
        sweep.held_out_results(sweep.runs()[0]).summary() == "median 5.5, lowest 5 of 3, 1 failed"
    )
    assert best_of(sweep).number == 1  # no seed of it failed
    start = confirming([(9, 4), (8, 7)], [])
    sweep = swept(held(max_runs=2, target_score=3.0), start, path="target.log")
    assert best_of(sweep).number == 0  # both reach it


@pytest.mark.parametrize(("seconds", "confirm", "seeds"), [(60, -1, 8), (61, -1, 0)])
def test_short_runs_are_confirmed_by_default(here, seconds, confirm, seeds):
    class Known(Formula):
        def outcome(self):
            return Outcome([Point(1.0, seconds if self.trial.number else 10.0, 1e5)])

    sweep = swept(held(max_runs=2, confirm=confirm), Known)
    assert [len(held_out_of(sweep, run)) for run in sweep.runs()] == [seeds] * 2
    assert sweep.missing_held_out_seeds() == [] and sweep.held_out_seed_count() == seeds


def test_best_run_is_the_searchs_until_all_held_out_seeds_are_known(here):
    events = []
    begin = confirming(SCORES, events)

    def start(run, slot, seed):
        if len(events) == 12:
            raise UserError("the disk is full", "make room")
        return begin(run, slot, seed)

    with pytest.raises(UserError, match="the disk is full"):
        swept(held(), start)
    sweep = open_study("j.log", held())
    assert best_of(sweep).number == 1 and sweep.winner_warning() == ""
    assert len(sweep.missing_held_out_seeds()) == 2 and sweep.runs(TrialState.FAIL) == []


def test_held_out_seeds_of_another_machine_are_not_trained_here(here, monkeypatch):
    events = []
    swept(held(confirm=0, max_runs=1), confirming(SCORES, []))
    sweep = open_study("j.log", held(max_runs=1))
    with monkeypatch.context() as patch:
        patch.setattr(study, "process_name", own("another machine", *DEAD[1:]))
        sweep.record_held_out_process(sweep.runs()[0], 1, [2**22 + 2, 1.0])
    drive(sweep, held(max_runs=1), confirming(SCORES, events))
    assert [seed - HELD_OUT_OFFSET for _, seed in events] == [0, 2]


# ---- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "start", "said"),
    [
        ("MAX_FAILURES", partial(Formula, fault="broken"), "the last 4 runs failed; run 4: broken"),
        ("MAX_INVALID", refuse, "the last 4 suggestions can't be run; run 4: not started: no such"),
    ],
)
def test_sweep_ends_after_many_failures(here, monkeypatch, start, limit, said):
    monkeypatch.setattr(f"{DRIVER}.{limit}", 4)
    sweep = open_study("j.log", settings())
    with pytest.raises(UserError, match=said):
        drive(sweep, settings(max_runs=9), start)
    assert len(sweep.runs(TrialState.FAIL)) == 4


def test_run_with_a_failed_seed_has_failed_and_its_other_seeds_end(here):
    began = []

    class Slow(Lucky):
        def outcome(self):
            return None if self.seed == 2 and not self.ends else super().outcome()

    def start(run, slot, seed):
        began.append(
            Slow(run, slot, seed, fault="it broke" if (run.number, seed) == (0, 1) else "")
        )
        return began[-1] if run.number == 0 else Lucky(run, slot, seed)

    sweep = swept(seeded(max_runs=4), start, slots=[Slot(0), Slot(1)])
    first = sweep.runs()[0]
    assert (first.state.name, first.user_attrs["fault"]) == ("FAIL", "with its seed 2: it broke")
    assert [run.ends for run in began if run.trial.number == 0] == [[], [], ["ended"]]


# ---- dying ---------------------------------------------------------------------------------------


def own(*process):
    return lambda: list(process)


def test_suggestions_after_a_restart_are_those_of_an_uninterrupted_sweep(here):
    how = settings(method="TPE", max_runs=7)
    whole = known(swept(how, path="whole.log"))
    for runs in (2, 5, 7):  # as separate processes, which know only the file
        drive(open_study("parts.log", how), settings(max_runs=runs))
    assert known(open_study("parts.log", how)) == whole
    drive(open_study("other.log", how, seed=2), how)
    assert known(open_study("other.log", how)) != whole


@pytest.mark.parametrize(
    "how",
    [
        settings(method="Random", max_runs=3),
        seeded(max_runs=5, method="Protein", suggestions_per_pareto=2, gp_training_iter=1),
        settings(method="Random", max_runs=4, downsample=1, confirm=3),
    ],
    ids=["one seed", "several", "held-out seeds"],
)
def test_sweep_that_dies_at_any_write_resumes_without_loss_or_repetition(here, monkeypatch, how):
    whole = swept(how, Lucky, "whole.log")
    writes = len(Path("whole.log").read_text().splitlines())
    assert writes > 30
    for last in range(9, writes, 1 if how.seeds == 1 and not how.confirm else 5):
        path = f"{last}.log"
        with dying(monkeypatch, last):
            swept(how, Lucky, path)
        left = open_study(path, how)
        there = {run.number: {*seed_curves(run)} for run in left.runs()}
        for run in left.runs():
            there[run.number] |= {HELD_OUT_OFFSET + i for i in held_out_of(left, run)}

        def start(run, slot, seed, there=there):
            assert seed not in there.get(run.number, ())
            return Lucky(run, slot, seed)

        with monkeypatch.context() as patch:
            patch.setattr(f"{DRIVER}.process_name", own("this machine", 1, 1.0))
            patch.setattr(f"{DRIVER}.OWNERLESS_SECONDS", 0.0)
            swept(how, start, path)
        again = open_study(path, how)
        assert known(again) == known(whole), last
        assert [*map(seed_curves, again.trials())] == [*map(seed_curves, whole.trials())], last
        for run in whole.runs():
            assert held_out_of(again, run) == held_out_of(whole, run), last
        assert best_of(again).number == best_of(whole).number


@pytest.mark.parametrize(
    ("owner", "mine"),
    [
        (["another machine", *DEAD[1:]], False),
        (["this machine", *ProcessIdentity.of(os.getpid())], False),
        (["this machine", os.getpid(), 1.0], True),  # another process has its number now
    ],
    ids=["another machine", "living", "dead"],
)
def test_only_runs_of_dead_processes_of_this_machine_are_taken_over(here, monkeypatch, owner, mine):
    how = settings(method="Random", max_runs=1)
    monkeypatch.setattr(samplers, "process_name", own(*owner))
    open_study("j.log", how).new_run()
    monkeypatch.setattr(f"{DRIVER}.process_name", own("this machine", 1, 1.0))
    (run,) = swept(how).runs()
    assert run.state.name == ("COMPLETE" if mine else "RUNNING")
    assert run.user_attrs["owner"] == (study.process_name() if mine else owner)


WORKER = """
import os, signal, sys, time
sys.path[:0] = [sys.argv[1]]
from swept import *
how = settings(max_runs=int(sys.argv[2]))
starts = iter(range(100))
def start(run, slot, seed):
    if next(starts) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return Formula(run, slot)
drive(open_study("shared.log", how), how, start)
"""


def worker(folder, runs, killed=-1):
    """Start a process that runs a sweep and is killed when it starts a certain run."""
    words = [sys.executable, "-c", WORKER, str(ROOT / "tests"), str(runs), str(killed)]
    return subprocess.Popen(words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_two_processes_share_the_sweep_of_a_killed_one(here):
    how = settings(max_runs=8)
    assert worker(here, 8, killed=4).wait(120) == -signal.SIGKILL
    left = open_study("shared.log", how)
    assert [run.state.name for run in left.runs()] == ["COMPLETE"] * 4 + ["RUNNING"]
    both = [worker(here, 8) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    runs = left.runs()
    assert {run.state for run in runs} == {TrialState.COMPLETE}
    assert 8 <= len(runs) <= 9  # each looks before it begins one
    assert len({tuple(run.params.values()) for run in runs}) == len(runs)
    whole = swept(settings(max_runs=5), path="whole.log")
    before = [(run.params, run.values) for run in whole.runs()]
    assert [(run.params, run.values) for run in runs[:5]] == before


# ---- several at once -----------------------------------------------------------------------------


def test_runs_and_seeds_share_the_slots(here):
    active, most = {}, []

    class Slow(Lucky):
        looks = 0

        def outcome(self):
            self.looks += 1
            if self.looks < 3 + self.slot.number:
                return None
            del active[self.slot]
            return super().outcome()

    def start(run, slot, seed):
        assert slot not in active and (run.number, seed) not in active.values()
        active[slot] = run.number, seed
        most.append(len(active))
        return Slow(run, slot, seed)

    sweep = swept(seeded(max_runs=12), start, slots=[Slot(i) for i in range(4)])
    assert max(most) == 4 and not sweep.runs(TrialState.RUNNING)


@pytest.mark.parametrize(
    "how",
    [seeded(max_runs=8), settings(method="Random", max_runs=2, confirm=2)],
    ids=["several seeds", "held-out seeds"],
)
def test_interrupted_runs_and_seeds_are_started_again_with_their_values(here, how):
    whole = swept(how, Lucky, "whole.log")
    began = []

    def start(run, slot, seed):
        began.append(seed)
        if len(began) == 4:
            raise KeyboardInterrupt
        return Lucky(run, slot, seed)

    with pytest.raises(KeyboardInterrupt):
        swept(how, start)
    again = swept(how, Lucky)
    assert known(again) == known(whole)
    scores = [[held_out_of(each, run) for run in each.runs()] for each in (again, whole)]
    assert scores[0] == scores[1]


def test_released_run_is_taken_once(here):
    sweep = open_study("j.log", settings())
    sweep.new_run()
    sweep.release()
    (waiting,) = sweep.runs(TrialState.WAITING)
    assert sweep.take_over(waiting) and not open_study("j.log", settings()).take_over(waiting)


def test_signals_leave_no_process_that_the_study_does_not_know(here, monkeypatch):
    monkeypatch.setattr(f"{DRIVER}.STOP_TIMEOUT", 600.0)
    monkeypatch.setattr(signals, "BURST_SECONDS", -1.0)
    interrupts = signals.Interrupts()
    sweep, began = open_study("j.log", settings()), []

    class Stubborn(Formula):
        def outcome(self):
            return None

        def is_running(self):
            interrupts.signal(signal.SIGINT)
            return not self.ends

        def end(self, timeout=None):
            interrupts.signal(signal.SIGINT)
            super().end()

    def start(run, slot, seed):
        interrupts.signal(signal.SIGINT)
        began.append(Stubborn(run, slot))
        return began[-1]

    with pytest.raises(KeyboardInterrupt):
        drive(sweep, settings(), start, slots=[Slot(0)], interrupts=interrupts)
    assert [run.ends for run in began] == [["ended"]]
    assert {run.state for run in sweep.runs()} == {TrialState.WAITING}


def test_run_below_the_others_at_its_cost_is_stopped_and_keeps_its_curve(here):
    class Bad(Formula):
        def poll(self):
            return [Point(-100.0, 1e4, 1.0)] if self.trial.number >= 30 else []

    sweep = swept(settings(max_runs=12, method="Random", early_stop_quantile=0.3), Bad)
    run = sweep.runs()[-1]
    assert (run.number >= 30, run.state.name) == (True, "PRUNED")
    assert run.user_attrs["stopped"].endswith(" is worse than other runs at that cost")
    assert [t.user_attrs[POINT_INDEX] for t in points_of(sweep, run)] == [0, 1]


def test_finished_curves_are_worths_by_cost(here):
    how = settings(max_runs=3, goal="minimize")
    sweep = swept(how)
    curves = sweep.finished_curves()
    for run, curve in zip(sweep.runs(), curves, strict=True):
        points = [p for p in formula(run.params) if p.steps >= 1e4]
        assert curve == pytest.approx(np.array([[-p.score, p.cost] for p in points]))


# ---- other studies -------------------------------------------------------------------------------


def test_study_of_another_program_is_refused_and_one_just_begun_is_opened(here, monkeypatch):
    opened = storage.open_storage("j.log")
    open_study("j.log", settings())
    assert open_study("j.log", settings(), new=1).runs()  # a later version's key
    optuna.create_study(storage=opened, study_name="theirs")
    with pytest.raises(UserError, match="theirs isn't a sweep of puffer_mlx"):
        study.study_info(opened, "theirs", timeout=0)
    assert study.study_info(opened, "none") is None
    looks = iter([None, ABOUT])  # another process has just begun it
    monkeypatch.setattr(study, "study_info", lambda storage, name: next(looks))
    assert [run.number for run in open_study("j.log", settings()).runs()] == [0]
