"""The trials of a sweep, stored as an Optuna study with two objectives: score and cost.

There are two kinds of trials. A *run* was suggested and trained: its parameters are the values of
the run, its objectives are the final score and the total cost in seconds. A *point* records a run's
score and cost at an earlier step, so all points of a run are its learning curve. Its parameters are
the run's, but ``train.total_timesteps`` is the number of steps trained so far. From points, methods
also learn the cost of shorter runs. A run that was stopped early is PRUNED in Optuna, and only its
points hold its results.

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
    HeldOutResults,
    Outcome,
    Point,
    SeedScores,
    combine_curves,
    combine_scores,
    is_beaten,
    seed_noise,
)
from puffer_mlx.sweep.reading import Sweep
from puffer_mlx.sweep.settings import (
    DEFAULT_HELD_OUT_SEEDS,
    SHORT_RUN_SECONDS,
    TOP_RUNS,
    SweepSettings,
)
from puffer_mlx.sweep.space import TIMESTEPS, Parameter, Space, Values
from puffer_mlx.sweep.training_process import ProcessIdentity

# Names of the attributes of trials.
RUN_NUMBER = "point_of"  # of a point: number of its run
POINT_INDEX = "point"  # of a point: index in the run's curve
OWNER = "owner"  # of a run: the sweep process that owns it (``process_name``)
PROCESS = "process"  # of a run: its training process; "process 3" for that of seed 3
SEED = "seed"  # of a run, "seed 3": the learning curve with seed 3
ERROR = "fault"  # of a failed run
STOP_REASON = "stopped"  # of a run that was stopped early
TRAINED_STEPS = "steps"  # of a run
LAST_RESULT = "last"  # of a run that was stopped early: its score and cost
FROM_CONFIG = "default"  # of a run with the values of the configuration
FROM_FILE = "given"  # of a run with another configuration's values: name of its file
# Names of the attributes of a study.
HELD_OUT_PREFIX = "held out"  # "held out 7 3": the result of run 7 with held-out seed 3
DESCRIPTION = "puffer_mlx"  # description of the sweep

FINISHED_STATES = TrialState.COMPLETE, TrialState.PRUNED
RIVAL_STATES = TrialState.COMPLETE, TrialState.RUNNING  # of runs that compete for further seeds
LOCAL_KEYS = {  # keys that may differ between the processes of one sweep
    "base.checkpoint_dir",
    "base.checkpoint_interval",
    "base.checkpoint_keep",
    "base.device",
    "base.log_dir",
    "base.profile",
    "base.tag",
    "base.track",
    "base.wandb",
    "base.wandb_group",
    "base.wandb_project",
    "vec.max_threads",
    "vec.num_threads",
}

optuna.logging.set_verbosity(optuna.logging.ERROR)


def is_run(trial: FrozenTrial) -> bool:
    """Return True if an Optuna trial is a run, False if it is a point of a run's curve."""
    return RUN_NUMBER not in trial.user_attrs


def distributions(space: Space) -> dict[str, Any]:
    """Return Optuna's distributions for the values of all searched parameters."""
    return {parameter.name: _distribution(parameter) for parameter in space.parameters}


def _distribution(parameter: Parameter) -> IntDistribution | FloatDistribution:
    low = parameter.to_value(-1)
    high = parameter.to_value(1)
    log = parameter.distribution in ("log_normal", "uniform_pow2")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def storage_and_id(study: optuna.Study, run: FrozenTrial) -> tuple[BaseStorage, int]:
    """Return a study's storage and the id of a run in it. This uses private names of Optuna.

    Optuna has no public way to change the state or an attribute of another process's trial. Checked
    with Optuna 5.0; ``pyproject.toml`` excludes 6. No other private names of Optuna are used.
    """
    return study._storage, run._trial_id


def process_name() -> list[Any]:
    """Return a list that identifies this process: host, process id, start time."""
    return [socket.gethostname(), *ProcessIdentity.of(os.getpid())]


def ignore_warnings() -> AbstractContextManager[Any]:
    """Suppress warnings in a block, such as Optuna's about values outside their ranges."""
    return warnings.catch_warnings(action="ignore")


def seed_curves(run: FrozenTrial) -> dict[int, list[Point]]:
    """Return a run's learning curves by seed number, one for each seed trained so far.

    The dict is empty if the sweep trains every run with one seed.
    """
    by_seed = {
        int(name.removeprefix(SEED)): [Point(*point) for point in points]
        for name, points in run.user_attrs.items()
        if name.startswith(f"{SEED} ")
    }
    return dict(sorted(by_seed.items()))


def seed_count(run: FrozenTrial) -> int:
    """Return the number of seeds that a run has been trained with, at least 1."""
    return max(1, len(seed_curves(run)))


def _held_out_attribute(run: FrozenTrial, seed: int) -> str:
    """Return the name under which a study stores the result of a run's held-out seed."""
    return f"{HELD_OUT_PREFIX} {run.number} {seed}"


def run_processes(run: FrozenTrial) -> list[ProcessIdentity]:
    """Return the identities of the recorded training processes of a run, one for each seed."""
    return [
        ProcessIdentity(*identity)
        for name, identity in run.user_attrs.items()
        if name.split(" ")[0] == PROCESS
    ]


class SeedDecision(NamedTuple):
    """Decision whether a sweep's run that waits for another random seed is trained with it.

    Args:
        run: The run.
        is_rejected: True if another run, which has been trained with all seeds, is better. Then
            this run gets no more seeds.
        is_next: True if no other waiting run is better.
    """

    run: FrozenTrial
    is_rejected: bool
    is_next: bool


class Study:
    """Trials of a sweep, stored in an Optuna study: find runs, and record what happens to them.

    Args:
        study: Optuna study.
        space: Parameters of the sweep.
        settings: Settings of the sweep.
    """

    def __init__(self, study: optuna.Study, space: Space, settings: SweepSettings) -> None:
        self.optuna_study = study
        self._space = space
        self.settings = settings
        self._distributions = distributions(space)

    # ---- queries ---------------------------------------------------------------------------------

    def trials(self) -> list[FrozenTrial]:
        """Return all trials of the sweep: runs, and points of their curves. Don't modify them."""
        return self.optuna_study.get_trials(deepcopy=False)

    def runs(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the sweep's runs in the given states, in order; without states, all runs."""
        return [
            trial
            for trial in self.trials()
            if is_run(trial) and (not states or trial.state in states)
        ]

    def ordinal(self, run: FrozenTrial) -> int:
        """Return the number of a run in messages: 1 for the sweep's first run, and so on.

        Optuna's trial numbers differ, because they also count points of curves.
        """
        return 1 + sum(each.number < run.number for each in self.runs())

    def best(self) -> FrozenTrial | None:
        """Return the sweep's best run, or None without finished runs.

        Once all held-out seeds are trained, runs are compared by their scores with them; before
        that, by the scores of the search.
        """
        top = self.top_runs()
        if not self.held_out_seed_count() or self.missing_held_out_seeds():
            return top[0] if top else None

        def rank(run: FrozenTrial) -> tuple[int, float, float]:
            """Return a run's sort key: failed seeds, then score, then cost; lower is better."""
            settings = self.settings
            scores, failed = self.held_out_results(run)
            score = 0.0  # if all seeds failed, the number of failures decides
            if scores:
                combined = combine_scores(scores, settings.seeds_score, settings.sign)
                score = settings.objective(combined)
            return failed, -score, run.values[1]

        return min(top, key=rank, default=None)

    def top_runs(self) -> list[FrozenTrial]:
        """Return the sweep's ``TOP_RUNS`` runs with the best scores, the cheaper of equal ones."""
        finished = self.runs(TrialState.COMPLETE)
        max_seeds = max(map(seed_count, finished), default=1)  # runs with fewer weren't promising
        runs = [run for run in finished if seed_count(run) == max_seeds]
        return sorted(runs, key=lambda run: (-self._objective(run), run.values[1]))[:TOP_RUNS]

    def _objective(self, run: FrozenTrial) -> float:
        return self.settings.objective(run.values[0])

    def finished_curves(self) -> list[np.ndarray]:
        """Return each finished run's learning curve: rows of objective and cost, (k, 2).

        Rows are ordered by cost.
        """
        finished = {run.number for run in self.runs(TrialState.COMPLETE)}
        curves = defaultdict(list)
        for trial in self.trials():
            number = trial.user_attrs.get(RUN_NUMBER, trial.number)
            if number in finished:
                score, cost = trial.values
                curves[number].append((self.settings.objective(score), cost))
        return [np.array(sorted(points, key=itemgetter(1))) for points in curves.values()]

    def count_trained(self, *states: TrialState) -> int:
        """Count the trainings of all runs in the given states: one for each seed of a run."""
        return sum(map(seed_count, self.runs(*states)))

    # ---- seeds -----------------------------------------------------------------------------------

    def record_seed(self, run: FrozenTrial, seed: int, points: Sequence[Point]) -> None:
        """Record in the study the learning curve of a run trained with one of its seeds."""
        self._set_attribute(run, f"{SEED} {seed}", [list(point) for point in points])

    def combined_curve(self, run: FrozenTrial) -> list[Point]:
        """Combine a run's learning curves with all seeds trained so far into one curve."""
        seeds_score = self.settings.seeds_score
        return combine_curves(list(seed_curves(run).values()), seeds_score, self.settings.sign)

    def seed_decisions(self, waiting: Sequence[int]) -> list[SeedDecision]:
        """Decide for each waiting run, the cheapest first, whether it gets another seed.

        Args:
            waiting: Numbers of runs that have been trained with at least one seed.
        """
        seeds_score = self.settings.seeds_score
        target = self.settings.target
        runs = self.runs(*RIVAL_STATES)
        scores_by_run = {run.number: self._seed_scores(run) for run in runs}
        trained = {number: scores for number, scores in scores_by_run.items() if scores}
        noise = seed_noise(list(trained.values()))
        complete = [
            trained[run.number]
            for run in self.runs(TrialState.COMPLETE)
            if seed_count(run) >= self.settings.seeds
        ]
        cheaper: list[SeedScores] = []
        decisions = []
        for number in sorted(waiting, key=lambda number: (trained[number].cost, number)):
            scores = trained[number]
            is_rejected = is_beaten(scores, complete, seeds_score, noise, target)
            is_next = not is_beaten(scores, cheaper, seeds_score, noise, target)
            decisions.append(SeedDecision(self.find(number), is_rejected, is_next))
            if not is_rejected:
                cheaper.append(scores)
        return decisions

    def _seed_scores(self, run: FrozenTrial) -> SeedScores | None:
        """Return the scores of a run with the seeds trained so far, or None without any."""
        ends = [curve[-1] for curve in seed_curves(run).values()]
        if not ends and run.state == TrialState.COMPLETE:  # a run of a sweep with one seed per run
            ends = [Point(run.values[0], run.values[1], 0)]
        scores = [self.settings.sign * end.score for end in ends]
        return SeedScores(scores, fmean(end.cost for end in ends)) if ends else None

    # ---- held-out seeds --------------------------------------------------------------------------

    # Results are attributes of the study, not trials, so that samplers never learn from them.

    def held_out_seed_count(self) -> int:
        """Return the number of held-out seeds with which each of the top runs is trained again."""
        if (seeds := self.settings.confirm) >= 0:
            return seeds
        top = self.top_runs()
        return (
            DEFAULT_HELD_OUT_SEEDS
            if top and max(run.values[1] for run in top) <= SHORT_RUN_SECONDS
            else 0
        )

    def held_out_results(self, run: FrozenTrial) -> HeldOutResults:
        """Return the scores of a run with the held-out seeds trained so far, and its failures."""
        attributes = self.optuna_study.user_attrs
        seeds = range(self.held_out_seed_count())
        results = [attributes.get(_held_out_attribute(run, i), {}) for i in seeds]
        ended = [result["score"] for result in results if "score" in result]
        scores = [score for score in ended if score is not None]
        return HeldOutResults(scores, len(ended) - len(scores))

    def winner_warning(self) -> str:
        """Return a warning if held-out seeds contradict the search's best run; else "".

        They contradict it if another run is better, or if no held-out seed reaches the run's score
        in the search. The run was lucky if most seeds don't reach it.
        """
        best = self.best()
        top = self.top_runs()
        if best is None or not self.held_out_seed_count() or self.missing_held_out_seeds():
            return ""
        held_out = self.held_out_results(top[0])
        same = best.number == top[0].number
        scores = map(self.settings.objective, held_out.scores)
        winning_score = self._objective(top[0])
        reached = [score >= winning_score for score in scores]
        if same and any(reached):
            return ""
        words = held_out.summary(self.settings.sign)
        verdict = "was lucky" if 2 * sum(reached) < held_out.seeds else "isn't the best"
        suffix = "" if same else f"; run {self.ordinal(best)} is better"
        return (
            f"the search's winner, run {self.ordinal(top[0])}, {verdict}: its score in the search"
            f" was {top[0].values[0]:.5g}, with held-out seeds {words}{suffix}"
        )

    def missing_held_out_seeds(self) -> list[tuple[FrozenTrial, int]]:
        """Return the pairs of a run and a held-out seed that still lack a result, by seed."""
        attributes = self.optuna_study.user_attrs
        top = self.top_runs()
        pairs = [(run, i) for i in range(self.held_out_seed_count()) for run in top]
        return [
            (run, i)
            for run, i in pairs
            if "score" not in attributes.get(_held_out_attribute(run, i), {})
        ]

    def held_out_processes(self, run: FrozenTrial, seed: int) -> tuple[list[Any], list[Any]] | None:
        """Return the processes that train a run's held-out seed, or None if none does.

        These are the sweep's process (``process_name``), and the training process as a list that is
        empty until it has started.
        """
        holder = self.optuna_study.user_attrs.get(_held_out_attribute(run, seed), {})
        return (holder[OWNER], holder.get(PROCESS, [])) if OWNER in holder else None

    def record_held_out_process(
        self, run: FrozenTrial, seed: int, process: Sequence[float] = ()
    ) -> None:
        """Record that this sweep process trains a run's held-out seed.

        Args:
            run: The run.
            seed: Index of the held-out seed, from 0.
            process: Identity of the training process; empty until it has started.
        """
        holding = {OWNER: process_name()} | ({PROCESS: [*process]} if process else {})
        self.optuna_study.set_user_attr(_held_out_attribute(run, seed), holding)

    def record_held_out_result(self, run: FrozenTrial, seed: int, outcome: Outcome) -> None:
        """Record in the study the score or the error of a run with one of its held-out seeds."""
        score = outcome.points[-1].score if outcome.points else None
        self.optuna_study.set_user_attr(
            _held_out_attribute(run, seed), {"score": score, ERROR: outcome.error}
        )

    # ---- runs ------------------------------------------------------------------------------------

    def new_run(self) -> FrozenTrial:
        """Create a new run in the sweep's study, with queued values or else suggested ones."""
        with ignore_warnings():
            return self.find(self.optuna_study.ask(self._distributions).number)

    def claim(self, run: FrozenTrial) -> None:
        """Make this process the owner of a run whose process has died."""
        self._set_attribute(run, OWNER, process_name())

    def release(self) -> None:
        """Release the unfinished runs and held-out seeds of this process, for other sweeps."""
        this_process = process_name()
        for run in self.runs(TrialState.RUNNING):
            if run.user_attrs.get(OWNER) == this_process:
                self._set_attribute(run, OWNER, None)
                storage, trial_id = storage_and_id(self.optuna_study, run)
                storage.set_trial_state_values(trial_id, TrialState.WAITING)
        for name, holder in self.optuna_study.user_attrs.items():
            if name.startswith(f"{HELD_OUT_PREFIX} ") and holder.get(OWNER) == this_process:
                self.optuna_study.set_user_attr(name, {})

    def take_over(self, run: FrozenTrial) -> bool:
        """Take over a run that an ended sweep released. Returns False if another was first."""
        if OWNER not in run.user_attrs:  # never started
            return False
        with suppress(UpdateFinishedTrialError):  # another sweep took it first
            storage, trial_id = storage_and_id(self.optuna_study, run)
            if storage.set_trial_state_values(trial_id, TrialState.RUNNING):
                self.claim(run)
                return True
        return False

    def restart(self, run: FrozenTrial) -> FrozenTrial:
        """Restart an interrupted run with the same values. Returns the run.

        Missing values are suggested.
        """
        with ignore_warnings():
            if run.params.keys() < self._distributions.keys():  # died during the suggestion
                trial = optuna.Trial(self.optuna_study, storage_and_id(self.optuna_study, run)[1])
                for name, each in self._distributions.items():
                    is_integer = isinstance(each, IntDistribution)
                    suggest: Any = trial.suggest_int if is_integer else trial.suggest_float
                    suggest(name, each.low, each.high, log=each.log)
        return self.find(run.number)

    def find(self, number: int) -> FrozenTrial:
        """Return the sweep's trial that has the given number."""
        return self.trials()[number]

    def record_process(self, run: FrozenTrial, process: Sequence[float], seed: int = 0) -> None:
        """Record the training process of a run, so that it can be ended if this process crashes."""
        self._set_attribute(run, f"{PROCESS} {seed}" if seed else PROCESS, list(process))

    def _set_attribute(self, run: FrozenTrial, name: str, value: Any) -> None:
        storage, trial_id = storage_and_id(self.optuna_study, run)
        storage.set_trial_user_attr(trial_id, name, value)

    def record_outcome(self, run: FrozenTrial, outcome: Outcome) -> None:
        """Record the result of an ended run: its learning curve and score, or its error.

        Its points are recorded first, so that a finished run always has all of them.
        """
        if outcome.error:
            self._set_attribute(run, ERROR, outcome.error)
            self.optuna_study.tell(run.number, state=TrialState.FAIL, skip_if_finished=True)
            return
        points = outcome.points if outcome.stop_reason else outcome.points[:-1]
        recorded = {
            trial.user_attrs[POINT_INDEX]
            for trial in self.trials()
            if trial.user_attrs.get(RUN_NUMBER) == run.number
        }
        for i, point in enumerate(points):
            if i not in recorded:
                self._add_point(run, i, point)
        last = outcome.points[-1]
        self._set_attribute(run, TRAINED_STEPS, last.steps)
        if outcome.stop_reason:
            self._set_attribute(run, STOP_REASON, outcome.stop_reason)
            self._set_attribute(run, LAST_RESULT, [last.score, last.cost])
            self.optuna_study.tell(run.number, state=TrialState.PRUNED, skip_if_finished=True)
        else:
            self.optuna_study.tell(run.number, [last.score, last.cost], skip_if_finished=True)

    def _add_point(self, run: FrozenTrial, index: int, point: Point) -> None:
        """Store a point of a run's curve as a trial, unless its values are out of range."""
        values = dict(run.params)
        if TIMESTEPS in self._distributions:
            values[TIMESTEPS] = int(point.steps)
        for name, distribution in self._distributions.items():
            if not distribution.low <= values[name] <= distribution.high:
                return
        trial = create_trial(
            values=[point.score, point.cost],
            params=values,
            distributions=self._distributions,
            user_attrs={RUN_NUMBER: run.number, POINT_INDEX: index},
        )
        self.optuna_study.add_trial(trial)


# ---- opening a study -----------------------------------------------------------------------------


def open_study(
    storage: BaseStorage,
    name: str,
    sweep: Sweep,
    description: Mapping[str, Any],
    sampler: BaseSampler,
    first_values: Mapping[str, Values] = {},
) -> Study:
    """Open the study of a sweep, or create one whose first run has the configured values.

    Args:
        storage: Storage of the trials.
        name: Name of the study.
        sweep: Settings and ranges of the sweep.
        description: Description of the sweep from ``describe_sweep``.
        sampler: Suggests the values of runs.
        first_values: Values of the next runs, by the name of the file that contains them.

    Raises:
        UserError: If the study of this name belongs to another sweep.
    """
    if study_info(storage, name) is None:
        space = sweep.space
        goal = "maximize" if sweep.settings.sign > 0 else "minimize"
        recorded = {p.name: p.recorded_default for p in space.parameters}
        defaults = {name: value for name, value in recorded.items() if value is not None}
        # Another process may create the study at the same time.
        with ignore_warnings(), suppress(DuplicatedStudyError):
            study = optuna.create_study(
                storage=storage, study_name=name, directions=[goal, "minimize"]
            )
            study.set_metric_names(["score", "cost"])
            study.enqueue_trial(defaults, user_attrs={FROM_CONFIG: True})
            for file, values in first_values.items():
                study.enqueue_trial(values, user_attrs={FROM_FILE: file})
            study.set_user_attr(DESCRIPTION, json.dumps(description))
    if line := settings_difference(study_info(storage, name) or {}, description):
        hint = "resume with the original options, or start another sweep with another --name"
        raise UserError(f"the sweep {name} has other settings: {line}", hint)
    with ignore_warnings():
        study = optuna.load_study(storage=storage, study_name=name, sampler=sampler)
    return Study(study, sweep.space, sweep.settings)


def describe_sweep(sweep: Sweep, config: Config) -> dict[str, Any]:
    """Return the settings that all processes of a sweep must share.

    The keys of the dict name the settings in messages, for example ``the range of train.gamma``.
    """
    plain = to_dict(config)
    space = sweep.space
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
        "sweep.metric": sweep.settings.metric,
        "sweep.goal": sweep.settings.goal,
        "what is swept": ", ".join(space.names),
        **ranges,
        **{name: keys[name] for name in keys if name not in {*LOCAL_KEYS, *space.names}},
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
    while (text := storage.get_study_user_attrs(number).get(DESCRIPTION)) is None:
        if time.monotonic() > deadline:
            raise UserError(
                f"the study {name} isn't a sweep of puffer_mlx", "choose another --name"
            )
        time.sleep(0.05)
    try:
        saved = json.loads(text)
        words = saved.get("words", [])  # in the descriptions of earlier versions
        valid = isinstance(words, list) and all(isinstance(word, str) for word in words)
    except (TypeError, ValueError, AttributeError, RecursionError):
        valid = False
    if not valid:
        message = f"the description in the study {name} is invalid"
        raise UserError(message, "it is damaged; start another sweep with another --name")
    return saved


def settings_difference(previous: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Return the first difference between the descriptions of two sweeps as text, or ""."""
    current = json.loads(json.dumps(current))  # as stored: tuples become lists
    for name in (name for name in previous if name in current):
        if previous[name] != current[name]:
            return f"{name} was {previous[name]}, now {current[name]}"
    return ""


def study_names(storage: BaseStorage) -> list[str]:
    """Return the names of all studies in a storage."""
    return [study.study_name for study in storage.get_all_studies()]
