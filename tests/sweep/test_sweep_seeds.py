"""Runs that are judged by several seeds: which get further ones, what they come to, and dying."""

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("optuna", reason="pip install 'puffer-mlx[sweep]'")

from optuna.trial import TrialState
from swept import Formula, drive, dying, formula, known, open_study, settings

from puffer_mlx.errors import UserError
from puffer_mlx.sweep.curve import Outcome, Point
from puffer_mlx.sweep.engine.study import RUN, curves
from puffer_mlx.sweep.observations import Observations
from puffer_mlx.sweep.places import Place
from puffer_mlx.sweep.seeds import Judged, as_one, combined, is_beaten, noise

COST = "train.total_timesteps"


def luck(run, seed):
    """What a seed adds to a run's score: the same each time."""
    return (zlib.crc32(f"{sorted(run.params.items())} {seed}".encode()) % 1000 - 500) / 2000


@dataclass
class Lucky(Formula):
    """A run whose score depends on its seed, too."""

    def outcome(self):
        outcome = super().outcome()
        assert outcome
        more = luck(self.trial, self.seed)
        points = [Point(p.score + more, p.cost, p.steps) for p in outcome.points]
        return Outcome(points, outcome.fault, outcome.stopped)


def seeded(**given):
    return settings(**{"seeds": 3, "method": "Random", "max_runs": 12, **given})


def told(scores, events=None):
    """Starts runs that cost the same, and have these scores by their number and seed."""

    class Told(Formula):
        def outcome(self):
            if events is not None:
                events.append(f"{self.trial.number} ended")
            return Outcome([Point(scores[self.trial.number][self.seed], 10.0, 1e5)])

    def start(run, place, seed):
        if events is not None:
            events.append(f"{run.number} began")
        return Told(run, place, seed)

    return start


# ---- the rule ------------------------------------------------------------------------------------


def test_scores_of_seeds_as_one():
    assert as_one([1, 2, 6], "mean") == 3 and as_one([1, 2, 6], "median") == 2
    assert as_one([1, 2, 6], "worst") == 1 and as_one([1, 2, 6], "worst", sign=-1) == 6


def test_curves_are_matched_from_their_ends():
    short = [Point(4, 10, 100), Point(6, 20, 200)]
    long = [Point(0, 4, 40), Point(2, 12, 100), Point(3, 24, 200)]
    assert combined([short, long], "mean") == [Point(3, 11, 100), Point(4.5, 22, 200)]
    assert combined([short, long], "worst") == [Point(2, 11, 100), Point(3, 22, 200)]


def test_the_noise_seen_is_the_median_of_deviations():
    assert noise([Judged([1], 1)]) == 0
    # Deviations of two numbers are their distance over the square root of two.
    several = [Judged([1], 1), Judged([0, 2], 1), Judged([0, 4], 1), Judged([0, 100], 1)]
    assert noise(several) == pytest.approx(4 / math.sqrt(2))


@pytest.mark.parametrize(
    ("score", "cost", "beaten"),
    [
        (9.0, 10, False),  # better
        (7.0, 10, False),  # 8 is within the noise
        (6.5, 10, True),
        (6.5, 4, False),  # nothing is as cheap
        (6.5, 5, True),
    ],
)
def test_what_is_beaten(score, cost, beaten):
    rivals = [Judged([7.0, 9.0], 5.0), Judged([1.0], 1.0)]
    assert is_beaten(Judged([score], cost), rivals, "mean", noise=1.5) == beaten


def test_what_is_enough_ends_the_search_for_more():
    rivals, less = [Judged([860.0, 860.0], 50.0)], [Judged([860.0, 859.0], 50.0)]
    assert is_beaten(Judged([860.0], 60.0), rivals, "worst", 5.0, enough=860.0)
    assert not is_beaten(Judged([860.0], 60.0), less, "worst", 5.0, enough=860.0)
    assert not is_beaten(Judged([860.0], 40.0), rivals, "worst", 5.0, enough=860.0)


def test_a_score_above_the_target_counts_as_the_target():
    how = settings(target_score=5.0)
    assert [how.worth(x) for x in (4, 5, 9)] == [4, 5, 5]
    less = settings(target_score=5.0, goal="minimize")
    assert [less.worth(x) for x in (9, 5, 4)] == [-9, -5, -5]
    assert [Observations(less).entered(x) for x in (9, 4)] == [-9, -5]
    logit = settings(target_score=0.5, metric_distribution="percentile")
    assert Observations(logit).entered(0.9) == Observations(logit).entered(0.5) == 0


# ---- in a sweep ----------------------------------------------------------------------------------


def test_further_seeds_are_for_promising_runs(here):
    how = seeded()
    made = open_study("j.log", how)
    told = drive(made, how, Lucky)
    counts = [len(curves(run)) for run in made.runs()]
    assert {1, 3} <= {*counts} <= {1, 2, 3} and counts[0] == 3  # nothing rivals the first
    assert 12 <= sum(counts) == made.trained(TrialState.COMPLETE) <= 14
    assert [run.number for run in told.over] == [run.number for run in made.runs()]
    before = []
    for run in made.runs():
        whole = formula(run.params)[-1].score
        scores = [curve[-1].score for curve in curves(run).values()]
        assert scores == [whole + luck(run, seed) for seed in range(len(scores))]
        assert run.values == pytest.approx([fmean(scores), formula(run.params)[-1].cost])
        first = Judged(scores[:1], run.values[1])
        whole = [each for each in before if len(each.scores) == 3]
        beaten = is_beaten(first, whole, "mean", noise([*before, first]))
        assert (len(scores) == 1) == beaten or len(scores) == 2  # beaten by its second seed
        before.append(Judged(scores, run.values[1]))
    best = made.best()
    assert best and len(curves(best)) == 3
    assert best.values[0] == max(r.values[0] for r in made.runs() if len(curves(r)) == 3)
    assert all(len(curves(run)) == 3 for run in made.front())


def test_with_one_seed_nothing_else_is_stored(here):
    how = settings(method="Random", max_runs=4)
    made = open_study("j.log", how)
    drive(made, how, Lucky)
    assert not any(curves(run) for run in made.runs())
    assert "seed" not in Path("j.log").read_text()


def test_a_sweep_of_one_seed_that_goes_on_with_three(here):
    start = told({0: [9.0], 1: [4.0, 4.0, 4.0]})
    drive(open_study("j.log", seeded(seeds=1)), seeded(seeds=1, max_runs=1), start)
    made = open_study("j.log", seeded())
    best = made.best()
    assert best and best.number == 0
    drive(made, seeded(max_runs=2), start)
    assert [len(curves(run)) for run in made.runs()] == [0, 3]  # a lucky one ends none
    best = made.best()
    assert best and best.number == 1


def test_points_of_several_seeds_are_one_curve(here):
    how = seeded(max_runs=1, seeds_score="worst")
    made = open_study("j.log", how)
    drive(made, how, Lucky)
    (run,) = made.runs()
    less = min(luck(run, seed) for seed in range(3))
    curve = formula(run.params)
    points = [trial for trial in made.trials() if trial.user_attrs.get(RUN) == run.number]
    expected = [[p.score + less, p.cost] for p in curve[:-1]]
    assert [t.values for t in points] == [pytest.approx(values) for values in expected]
    assert run.values == pytest.approx([curve[-1].score + less, curve[-1].cost])


def test_the_cheapest_that_reaches_the_target_is_best(here):
    how = settings(method="Random", max_runs=12, target_score=2.5)
    made = open_study("j.log", how)
    drive(made, how)
    reach = [run for run in made.runs() if run.values[0] >= 2.5]
    best = made.best()
    assert len(reach) > 1 and best
    assert best.values[1] == min(run.values[1] for run in reach)
    assert made.front()[-1].number == best.number
    assert best.values[0] < max(run.values[0] for run in reach)


def test_a_seed_that_fails_is_a_failed_run(here):
    how = seeded(max_runs=4)
    made = open_study("j.log", how)
    began = []

    class Slow(Lucky):
        def outcome(self):
            return None if self.seed == 2 and not self.ends else super().outcome()

    def start(run, place, seed):
        if run.number:
            return Lucky(run, place, seed)
        began.append(Slow(run, place, seed, fault="it broke" if seed == 1 else ""))
        return began[-1]

    told = drive(made, how, start, places=[Place(0), Place(1)])
    first = made.runs()[0]
    assert first.state == TrialState.FAIL
    assert first.user_attrs["fault"] == "with its seed 2: it broke"
    assert [run.ends for run in began] == [[], [], ["ended"]]  # its third seed was under way
    assert sum(run.number == 0 for run in told.over) == 1


def test_only_a_first_seed_is_ended_early(here):
    how = seeded(max_runs=3)
    made = open_study("j.log", how)
    judged = []

    def judge():
        judged.append(len(judged))
        return lambda points: "too little" if judged[-1] else ""

    drive(made, how, Lucky, judge=judge)
    runs = made.runs()
    assert [run.state.name for run in runs] == ["COMPLETE"]
    assert len(curves(runs[0])) == 3 and judged == [0]
    more = seeded(max_runs=4)
    drive(open_study("j.log", more), more, Lucky, judge=judge)
    assert made.runs()[1].state == TrialState.PRUNED and not curves(made.runs()[1])


# ---- dying, and several at once ------------------------------------------------------------------


def seeds_known(made):
    return [(*each, curves(trial)) for each, trial in zip(known(made), made.trials(), strict=True)]


def test_a_sweep_of_several_seeds_may_die_at_any_moment(here, monkeypatch):
    """At each of its writes: no seed that is known is trained again, and all goes on as it was."""
    how = seeded(max_runs=5, method="Protein", suggestions_per_pareto=2, gp_training_iter=1)
    whole = open_study("whole.log", how)
    drive(whole, how, Lucky)
    writes = len(Path("whole.log").read_text().splitlines())
    for last in range(9, writes):  # the study itself is there
        path = f"{last}.log"
        with dying(monkeypatch, last):
            drive(open_study(path, how), how, Lucky)
        there = {run.number: curves(run).keys() for run in open_study(path, how).runs()}

        def start(run, place, seed, there=there):
            assert seed not in there.get(run.number, ())
            return Lucky(run, place, seed)

        with monkeypatch.context() as patch:
            mine = lambda: ["this machine", 1, 1.0]  # noqa: E731
            patch.setattr("puffer_mlx.sweep.engine.driver.own_name", mine)
            patch.setattr("puffer_mlx.sweep.engine.driver.YOUNG", 0.0)
            drive(open_study(path, how), how, start)
        assert seeds_known(open_study(path, how)) == seeds_known(whole), last


def test_seeds_are_trained_at_once_where_there_are_places(here):
    how = seeded(max_runs=12)
    made = open_study("j.log", how)
    going, most = set(), []

    class Slow(Lucky):
        looks = 0

        def outcome(self):
            self.looks += 1
            if self.looks < 3:
                return None
            going.discard((self.trial.number, self.seed))
            return super().outcome()

    def start(run, place, seed):
        assert (run.number, seed) not in going
        going.add((run.number, seed))
        most.append([number for number, _ in going].count(run.number))
        return Slow(run, place, seed)

    drive(made, how, start, places=[Place(i) for i in range(4)])
    assert max(most) >= 2
    assert {len(curves(run)) for run in made.runs(TrialState.COMPLETE)} <= {1, 2, 3}
    assert not made.runs(TrialState.RUNNING)


def test_what_another_run_may_beat_waits_for_it(here):
    """Of runs under way the better one gets its seeds first; the other one isn't over by that."""
    how, events = seeded(max_runs=2), []
    made = open_study("j.log", how)
    start = told({0: [5.0, -9.0, -9.0], 1: [4.0, 4.0, 4.0]}, events)  # the first is lucky once
    drive(made, how, start, places=[Place(i) for i in range(4)])
    assert events[:4] == ["0 began", "1 began", "0 ended", "1 ended"]
    assert events[4:] == ["0 began"] * 2 + ["0 ended"] * 2 + ["1 began"] * 2 + ["1 ended"] * 2
    assert [run.values[0] for run in made.runs()] == pytest.approx([-13 / 3, 4.0])
    best = made.best()
    assert best and best.number == 1


def test_a_further_seed_that_cannot_be_started(here):
    how = seeded(max_runs=3)
    made = open_study("j.log", how)

    def start(run, place, seed):
        if run.number == 0 and seed:
            raise UserError("no such seed", "another")
        return Lucky(run, place, seed)

    drive(made, how, start)
    assert made.runs()[0].user_attrs["fault"] == "not started: no such seed; another"
