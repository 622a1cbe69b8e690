"""A sweep as an Optuna study with two objectives, score and cost, and two kinds of trials.

A *run* is a suggested trial that was trained: its parameters are the values of the run, its
objectives are the score and the cost in seconds. A *point* is a part of a run's curve, stored as a
separate trial: the run's parameters with ``train.total_timesteps`` set to the steps trained so far.
So every method's cost model also learns from parts of runs. A run that was stopped early is PRUNED
in Optuna, and only its points hold its results.

The study contains everything needed to resume; no process holds state alone.
"""

import json
import os
import socket
import time
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from puffer_mlx.config import Config, to_dict
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.curve import (
    HeldOut,
    Outcome,
    Point,
    SeedScores,
    as_one,
    combined,
    is_beaten,
    noise,
)
from puffer_mlx.sweep.reading import Sweep
from puffer_mlx.sweep.settings import HELD_OUT, SHORT, TOP_RUNS, SweepSettings
from puffer_mlx.sweep.space import COST, Parameter, Space, Values
from puffer_mlx.sweep.training_process import Identity

RUN, POINT = "point_of", "point"  # attributes of a point: number of its run, index in the curve
OWNER, PROCESS = "owner", "process"  # attributes of a run: sweep that owns it, training process
SEED = "seed"  # attribute of a run, with a seed's number: its curve
FAULT, STOPPED, STEPS, LAST = "fault", "stopped", "steps", "last"
DEFAULT, GIVEN = "default", "given"  # of a run that no method suggested: source of its values
HELD = "held out"  # attribute of the study, with run and seed numbers: result of a held-out seed
FINISHED = TrialState.COMPLETE, TrialState.PRUNED
ALIVE = TrialState.COMPLETE, TrialState.RUNNING
ABOUT = "puffer_mlx"  # attribute of a study: the description of its sweep
MAY_DIFFER = {  # keys that may differ between the processes of one sweep
    *("base.device", "base.checkpoint_dir", "base.log_dir", "base.profile"),
    *("base.track", "base.wandb", "base.wandb_project", "base.wandb_group", "base.tag"),
    *("vec.num_threads", "vec.max_threads", "base.checkpoint_interval", "base.checkpoint_keep"),
}

optuna.logging.set_verbosity(optuna.logging.ERROR)


def is_run(trial: FrozenTrial) -> bool:
    """Return True if a trial is a run, False if it is a point of one."""
    return RUN not in trial.user_attrs


def distributions(space: Space) -> dict[str, Any]:
    """Return Optuna's distributions of a space's parameters, in units of the values."""
    return {parameter.name: _distribution(parameter) for parameter in space.parameters}


def _distribution(parameter: Parameter) -> IntDistribution | FloatDistribution:
    low, high = (parameter.to_value(unit) for unit in (-1, 1))
    log = parameter.distribution in ("log_normal", "uniform_pow2")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def storage_and_id(study: optuna.Study, run: FrozenTrial) -> tuple[BaseStorage, int]:
    """Return a study's storage and the id of a run in it: the only private names of Optuna used.

    Checked with Optuna 5.0; ``pyproject.toml`` excludes 6. Optuna has no public way to change the
    state or an attribute of another process's trial.
    """
    return study._storage, run._trial_id


def own_name() -> list[Any]:
    """Return an identification of this process: host, process id, start time."""
    return [socket.gethostname(), *Identity.of(os.getpid())]


def quiet() -> AbstractContextManager[Any]:
    """Suppress warnings of experimental features and of values outside their ranges."""
    return warnings.catch_warnings(action="ignore")


def curves(run: FrozenTrial) -> dict[int, list[Point]]:
    """Return the known curves of a run by seed number; {} if each run has one seed."""
    by_seed = {
        int(name.removeprefix(SEED)): [Point(*point) for point in points]
        for name, points in run.user_attrs.items()
        if name.startswith(f"{SEED} ")
    }
    return dict(sorted(by_seed.items()))


def seeds_of(run: FrozenTrial) -> int:
    """Return the number of seeds that a run has been trained with, at least 1."""
    return max(1, len(curves(run)))


def _held(run: FrozenTrial, seed: int) -> str:
    """Return the attribute's name for a held-out seed of a run."""
    return f"{HELD} {run.number} {seed}"


def processes(run: FrozenTrial) -> list[Identity]:
    """Return the processes that trained a run."""
    there = run.user_attrs.items()
    return [Identity(*each) for name, each in there if name.partition(" ")[0] == PROCESS]


class SeedDecision(NamedTuple):
    """Prospects of a run that waits for another seed.

    Args:
        run: The run.
        is_over: True if a run with all of its seeds is better, so that it gets no more seeds.
        has_turn: True if no other waiting run is better.
    """

    run: FrozenTrial
    is_over: bool
    has_turn: bool


class Study:
    """Trials of a sweep.

    Args:
        study: Optuna study.
        space: Parameters of the sweep.
        settings: Settings of the sweep.
    """

    def __init__(self, study: optuna.Study, space: Space, settings: SweepSettings) -> None:
        self.optuna = study
        self._space = space
        self.settings = settings
        self._distributions = distributions(space)

    # ---- queries ---------------------------------------------------------------------------------

    def trials(self) -> list[FrozenTrial]:
        """Return all trials, points included. Don't modify them."""
        return self.optuna.get_trials(deepcopy=False)

    def runs(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the runs in some states, or in all states if none is given, in order."""
        return [
            trial
            for trial in self.trials()
            if is_run(trial) and (not states or trial.state in states)
        ]

    def ordinal(self, run: FrozenTrial) -> int:
        """Return a run's displayed number, from 1. Trial numbers also count points."""
        return 1 + sum(each.number < run.number for each in self.runs())

    def best(self) -> FrozenTrial | None:
        """Return the best run, or None without runs.

        Compares held-out seeds once all are trained, before that the scores of the search.
        """
        few = self.top_runs()
        if not self.held_out_seeds() or self.missing_held_out():
            return few[0] if few else None

        def order(run: FrozenTrial) -> tuple[int, float, float]:
            scores, failed = self.held_out(run)
            how = self.settings.seeds_score
            sign = self.settings.sign
            score = self.settings.worth(as_one(scores, how, sign)) if scores else 0.0
            return failed, -score, run.values[1]

        return min(few, key=order, default=None)

    def top_runs(self) -> list[FrozenTrial]:
        """Return the ``TOP_RUNS`` runs with the best scores, the cheapest first among equals."""
        finished = self.runs(TrialState.COMPLETE)
        most = max(map(seeds_of, finished), default=1)  # runs with fewer seeds weren't promising
        runs = [run for run in finished if seeds_of(run) == most]
        return sorted(runs, key=lambda run: (-self._worth(run), run.values[1]))[:TOP_RUNS]

    def _worth(self, run: FrozenTrial) -> float:
        return self.settings.worth(run.values[0])

    def finished_curves(self) -> list[np.ndarray]:
        """Return the points of each finished run by cost, (k, 2): worth of the score, and cost."""
        finished = {run.number for run in self.runs(TrialState.COMPLETE)}
        curves = defaultdict(list)
        for trial in self.trials():
            number = trial.user_attrs.get(RUN, trial.number)
            if number in finished:
                score, cost = trial.values
                curves[number].append((self.settings.worth(score), cost))
        return [np.array(sorted(points, key=itemgetter(1))) for points in curves.values()]

    def trained(self, *states: TrialState) -> int:
        """Return the number of runs in some states, where each seed counts as one."""
        return sum(map(seeds_of, self.runs(*states)))

    # ---- seeds -----------------------------------------------------------------------------------

    def note_seed(self, run: FrozenTrial, seed: int, points: Sequence[Point]) -> None:
        """Record the curve of one of a run's seeds."""
        self._set(run, f"{SEED} {seed}", [list(point) for point in points])

    def combined(self, run: FrozenTrial) -> list[Point]:
        """Return the combined curve of all known seeds of a run."""
        how = self.settings.seeds_score
        return combined(list(curves(run).values()), how, self.settings.sign)

    def seed_decisions(self, waiting: Sequence[int]) -> list[SeedDecision]:
        """Return the prospects of runs that wait for another seed, the cheapest first.

        Args:
            waiting: Numbers of runs with at least one known seed.
        """
        how = self.settings.seeds_score
        enough = self.settings.target
        known = {run.number: self._judged(run) for run in self.runs(*ALIVE)}
        judged = {number: one for number, one in known.items() if one}
        differ = noise(list(judged.values()))
        complete = self.runs(TrialState.COMPLETE)
        whole = [judged[run.number] for run in complete if seeds_of(run) >= self.settings.seeds]
        before: list[SeedScores] = []
        decisions = []
        for number in sorted(waiting, key=lambda number: (judged[number].cost, number)):
            one = judged[number]
            is_over = is_beaten(one, whole, how, differ, enough)
            has_turn = not is_beaten(one, before, how, differ, enough)
            decisions.append(SeedDecision(self.find(number), is_over, has_turn))
            before += [] if is_over else [one]
        return decisions

    def _judged(self, run: FrozenTrial) -> SeedScores | None:
        """Return the known results of a run's seeds, or None without any."""
        ends = [curve[-1] for curve in curves(run).values()]
        if not ends and run.state == TrialState.COMPLETE:  # recorded when each run had one seed
            ends = [Point(run.values[0], run.values[1], 0)]
        scores = [self.settings.sign * end.score for end in ends]
        return SeedScores(scores, fmean(end.cost for end in ends)) if ends else None

    # ---- held-out seeds --------------------------------------------------------------------------

    # Results are attributes of the study, not trials, so that samplers never learn from them.

    def held_out_seeds(self) -> int:
        """Return the number of held-out seeds for each of the best few runs."""
        if (asked := self.settings.confirm) >= 0:
            return asked
        few = self.top_runs()
        return HELD_OUT if few and max(run.values[1] for run in few) <= SHORT else 0

    def held_out(self, run: FrozenTrial) -> HeldOut:
        """Return the known results of a run's held-out seeds."""
        known = self.optuna.user_attrs
        asked = range(self.held_out_seeds())
        ends = [known.get(_held(run, i), {}) for i in asked]
        scores = [end["score"] for end in ends if "score" in end]
        there = [score for score in scores if score is not None]
        return HeldOut(there, len(scores) - len(there))

    def winner_warning(self) -> str:
        """Return a sentence about the search's winner if held-out seeds contradict it; else "".

        They contradict if another run is better, or if no held-out seed reaches the winning score.
        The winner was lucky if most seeds don't reach it.
        """
        best = self.best()
        few = self.top_runs()
        if best is None or not self.held_out_seeds() or self.missing_held_out():
            return ""
        held_out = self.held_out(few[0])
        same = best.number == few[0].number
        scores = map(self.settings.worth, held_out.scores)
        won_by = self._worth(few[0])
        reached = [score >= won_by for score in scores]
        if same and any(reached):
            return ""
        words = held_out.words(self.settings.sign)
        judged = "was lucky" if 2 * sum(reached) < held_out.seeds else "isn't the best"
        rest = "" if same else f"; run {self.ordinal(best)} is better"
        return (
            f"the search's winner, run {self.ordinal(few[0])}, {judged}: its score there was"
            f" {few[0].values[0]:.5g}, with held-out seeds {words}{rest}"
        )

    def missing_held_out(self) -> list[tuple[FrozenTrial, int]]:
        """Return pairs of run and held-out seed without a result, ordered by seed."""
        known = self.optuna.user_attrs
        few = self.top_runs()
        pairs = [(run, i) for i in range(self.held_out_seeds()) for run in few]
        return [(run, i) for run, i in pairs if "score" not in known.get(_held(run, i), {})]

    def holder(self, run: FrozenTrial, seed: int) -> tuple[list[Any], list[Any]] | None:
        """Return the sweep and the process that train a held-out seed, or None."""
        known = self.optuna.user_attrs.get(_held(run, seed), {})
        return (known[OWNER], known.get(PROCESS, [])) if OWNER in known else None

    def note_holding(self, run: FrozenTrial, seed: int, process: Sequence[float] = ()) -> None:
        """Record that this sweep trains a held-out seed, in a process."""
        holding = {OWNER: own_name()} | ({PROCESS: [*process]} if process else {})
        self.optuna.set_user_attr(_held(run, seed), holding)

    def note_held_out(self, run: FrozenTrial, seed: int, outcome: Outcome) -> None:
        """Record the result of a held-out seed."""
        score = outcome.points[-1].score if outcome.points else None
        self.optuna.set_user_attr(_held(run, seed), {"score": score, FAULT: outcome.fault})

    # ---- runs ------------------------------------------------------------------------------------

    def ask(self) -> FrozenTrial:
        """Start a run: the next queued one, or one with suggested values."""
        with quiet():
            return self.find(self.optuna.ask(self._distributions).number)

    def claim(self, run: FrozenTrial) -> None:
        """Take over a run from a dead process."""
        self._set(run, OWNER, own_name())

    def release(self) -> None:
        """Release unfinished runs and held-out seeds of this process for other sweeps."""
        mine = own_name()
        for run in self.runs(TrialState.RUNNING):
            if run.user_attrs.get(OWNER) == mine:
                self._set(run, OWNER, None)
                storage, number = storage_and_id(self.optuna, run)
                storage.set_trial_state_values(number, TrialState.WAITING)
        for name, known in self.optuna.user_attrs.items():
            if name.startswith(f"{HELD} ") and known.get(OWNER) == mine:
                self.optuna.set_user_attr(name, {})

    def take(self, run: FrozenTrial) -> bool:
        """Take a released run. Returns True if this process owns it now."""
        if OWNER not in run.user_attrs:  # never started
            return False
        with suppress(UpdateFinishedTrialError):  # another sweep took it first
            storage, number = storage_and_id(self.optuna, run)
            if storage.set_trial_state_values(number, TrialState.RUNNING):
                self.claim(run)
                return True
        return False

    def restart(self, run: FrozenTrial) -> FrozenTrial:
        """Restart a run with the same values."""
        with quiet():
            if run.params.keys() < self._distributions.keys():  # died during the suggestion
                trial = optuna.Trial(self.optuna, storage_and_id(self.optuna, run)[1])
                for name, each in self._distributions.items():
                    whole = isinstance(each, IntDistribution)
                    suggest: Any = trial.suggest_int if whole else trial.suggest_float
                    suggest(name, each.low, each.high, log=each.log)
        return self.find(run.number)

    def find(self, number: int) -> FrozenTrial:
        """Return a trial by its number."""
        return self.trials()[number]

    def note_process(self, run: FrozenTrial, process: Sequence[float], seed: int = 0) -> None:
        """Record the process of a run, so that it can be ended after a crash of this process."""
        self._set(run, f"{PROCESS} {seed}" if seed else PROCESS, list(process))

    def _set(self, run: FrozenTrial, name: str, value: Any) -> None:
        storage, number = storage_and_id(self.optuna, run)
        storage.set_trial_user_attr(number, name, value)

    def tell(self, run: FrozenTrial, outcome: Outcome) -> None:
        """Record the result of a run, its points first, so that a finished run has all of them."""
        if outcome.fault:
            self._set(run, FAULT, outcome.fault)
            self.optuna.tell(run.number, state=TrialState.FAIL, skip_if_finished=True)
            return
        points = outcome.points if outcome.stopped else outcome.points[:-1]
        known = {
            trial.user_attrs[POINT]
            for trial in self.trials()
            if trial.user_attrs.get(RUN) == run.number
        }
        for i, point in enumerate(points):
            if i not in known:
                self._add(run, i, point)
        last = outcome.points[-1]
        self._set(run, STEPS, last.steps)
        if outcome.stopped:
            self._set(run, STOPPED, outcome.stopped)
            self._set(run, LAST, [last.score, last.cost])
            self.optuna.tell(run.number, state=TrialState.PRUNED, skip_if_finished=True)
        else:
            self.optuna.tell(run.number, [last.score, last.cost], skip_if_finished=True)

    def _add(self, run: FrozenTrial, i: int, point: Point) -> None:
        """Add a point, unless its values are outside the ranges of the sweep."""
        values = dict(run.params)
        ranges = self._distributions
        if COST in ranges:
            values[COST] = int(point.steps)
        if not all(ranges[name].low <= values[name] <= ranges[name].high for name in ranges):
            return
        trial = create_trial(
            values=[point.score, point.cost],
            params=values,
            distributions=ranges,
            user_attrs={RUN: run.number, POINT: i},
        )
        self.optuna.add_trial(trial)


# ---- opening a study -----------------------------------------------------------------------------


def open_study(
    storage: BaseStorage,
    name: str,
    swept: Sweep,
    described: Mapping[str, Any],
    sampler: BaseSampler,
    given: Mapping[str, Values] = {},
) -> Study:
    """Open a study, or create one whose first run has the configured values.

    Args:
        storage: Storage of the trials.
        name: Name of the study.
        swept: Settings and ranges of the sweep.
        described: Description of the sweep from ``describe_sweep``.
        sampler: Suggests the values of runs.
        given: Values of the next runs, by the name of the file that has them.

    Raises:
        UserError: If the study of this name belongs to another sweep.
    """
    if study_info(storage, name) is None:
        space = swept.space
        goal = "maximize" if swept.settings.sign > 0 else "minimize"
        recorded = {p.name: p.recorded_default for p in space.parameters}
        defaults = {name: value for name, value in recorded.items() if value is not None}
        with quiet(), suppress(DuplicatedStudyError):  # another process creates it, too
            study = optuna.create_study(
                storage=storage, study_name=name, directions=[goal, "minimize"]
            )
            study.set_metric_names(["score", "cost"])
            study.enqueue_trial(defaults, user_attrs={DEFAULT: True})
            for file, values in given.items():
                study.enqueue_trial(values, user_attrs={GIVEN: file})
            study.set_user_attr(ABOUT, json.dumps(described))
    if line := difference(study_info(storage, name) or {}, described):
        hint = "resume with the original options, or start another sweep with another --name"
        raise UserError(f"the sweep {name} has other settings: {line}", hint)
    with quiet():
        study = optuna.load_study(storage=storage, study_name=name, sampler=sampler)
    return Study(study, swept.space, swept.settings)


def describe_sweep(swept: Sweep, config: Config) -> dict[str, Any]:
    """Return the settings that all processes of a sweep must share, by names for messages."""
    plain = to_dict(config)
    space = swept.space
    ranges = {
        f"the range of {p.name}": f"{p.distribution} {p.low:g} to {p.high:g}"
        for p in space.parameters
    }
    keys = {
        f"{section}.{key}": value
        for section in ("base", "vec", "wrap", "policy", "torch", "train", "selfplay", "env")
        for key, value in plain[section].items()
    }
    return {
        "env": config.env_name,
        "source": Path(plain["source"]).name,
        "sweep.metric": swept.settings.metric,
        "sweep.goal": swept.settings.goal,
        "what is swept": ", ".join(space.names),
        **ranges,
        **{name: keys[name] for name in keys if name not in {*MAY_DIFFER, *space.names}},
    }


def study_info(storage: BaseStorage, name: str, timeout: float = 10.0) -> dict[str, Any] | None:
    """Return the description of an existing study, or None for an unknown name.

    Args:
        storage: Storage of the trials.
        name: Name of the study.
        timeout: Seconds to wait for the description of a study that another process just created.

    Raises:
        UserError: If the study isn't a sweep's, or is damaged.
    """
    try:
        number = storage.get_study_id_from_name(name)
    except KeyError:
        return None
    deadline = time.monotonic() + timeout
    while (text := storage.get_study_user_attrs(number).get(ABOUT)) is None:
        if time.monotonic() > deadline:
            raise UserError(
                f"the study {name} isn't a sweep of puffer_mlx", "choose another --name"
            )
        time.sleep(0.05)
    try:
        saved = json.loads(text)
        words = saved.get("words", [])
        right = isinstance(words, list) and all(isinstance(word, str) for word in words)
    except (TypeError, ValueError, AttributeError, RecursionError):
        right = False
    if not right:
        what = f"the description in the study {name} is invalid"
        raise UserError(what, "it is damaged; start another sweep with another --name")
    return saved


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the first difference between two descriptions of sweeps, or ""."""
    now = json.loads(json.dumps(now))
    for name in (name for name in before if name in now):
        if before[name] != now[name]:
            return f"{name} was {before[name]}, now {now[name]}"
    return ""


def study_names(storage: BaseStorage) -> list[str]:
    """Return the names of a storage's studies."""
    return [study.study_name for study in storage.get_all_studies()]
