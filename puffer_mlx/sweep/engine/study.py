"""A sweep in Optuna's form: a study with two objectives, score and cost, and trials of two kinds.

A *run* is a trial that was suggested and tried: its parameters are the values it was run with, its
values its score and its cost in seconds. A *point* is a part of a run's curve as a trial of its
own: the run's parameters with ``train.total_timesteps`` at what was trained until there, so that
what models cost learns from every part of a run, whoever's model it is. A run that was ended early
is Optuna's PRUNED, and only its points tell what it found.

Everything that is needed to go on is in the study: nothing is in a process's memory alone.
"""

import contextlib
import json
import os
import socket
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from puffer_mlx.config import Config, to_dict
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.child import Identity
from puffer_mlx.sweep.curve import Outcome, Point
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import COST, Parameter, Space

ABOUT = "puffer_mlx"  # the study's attribute that says what is swept
RUN, POINT = "point_of", "point"  # a point's attributes: the number of its run, and which it is
OWNER, CHILD = "owner", "process"  # a run's: the sweep that has it, and its own process
FAULT, STOPPED, STEPS, LAST, DEFAULT = "fault", "stopped", "steps", "last", "default"
MAY_DIFFER = {  # from one process of a sweep to another
    *("base.device", "base.checkpoint_dir", "base.log_dir", "base.log_format", "base.profile"),
    *("base.track", "base.wandb", "base.wandb_project", "base.wandb_group", "base.tag"),
    *("vec.num_threads", "vec.max_threads", "base.checkpoint_interval", "base.checkpoint_keep"),
}
FINISHED = TrialState.COMPLETE, TrialState.PRUNED

optuna.logging.set_verbosity(optuna.logging.ERROR)


def is_run(trial: FrozenTrial) -> bool:
    """Whether a trial is a run; else it is a point of one."""
    return RUN not in trial.user_attrs


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """A space's parameters as Optuna knows them, with their real values."""
    return {parameter.name: _distribution(parameter) for parameter in space.parameters}


def _distribution(parameter: Parameter) -> BaseDistribution:
    low, high = (parameter.to_value(unit) for unit in (-1, 1))
    log = parameter.distribution in ("log_normal", "uniform_pow2")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def own_name() -> list[Any]:
    """What tells this process from others: host, number, beginning."""
    return [socket.gethostname(), *Identity.of(os.getpid())]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of what is experimental, and of values outside of their ranges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Study:
    """A sweep's trials.

    Args:
        study: Optuna's.
        space: what is swept.
        settings: how.

    Attributes:
        optuna: the same.
    """

    def __init__(self, study: optuna.Study, space: Space, settings: SweepSettings) -> None:
        self.optuna, self._space, self._settings = study, space, settings
        self._distributions = distributions(space)

    # ---- what there is ---------------------------------------------------------------------------

    def trials(self) -> list[FrozenTrial]:
        """All of them, points too; not to be changed."""
        return self.optuna.get_trials(deepcopy=False)

    def runs(self, *states: TrialState) -> list[FrozenTrial]:
        """The runs in these states, none: in all; in their order."""
        return [
            trial
            for trial in self.trials()
            if is_run(trial) and (not states or trial.state in states)
        ]

    def best(self) -> FrozenTrial | None:
        """The run with the best score, of equals the cheapest; None without any."""
        runs = self.runs(TrialState.COMPLETE)
        return min(runs, key=lambda run: (-self.sign * run.values[0], run.values[1]), default=None)

    def front(self) -> list[FrozenTrial]:
        """Runs of which no other one is both as good and as cheap; the cheapest first."""
        made: list[FrozenTrial] = []
        runs = self.runs(TrialState.COMPLETE)
        for run in sorted(runs, key=lambda run: (run.values[1], -self.sign * run.values[0])):
            if not made or self.sign * run.values[0] > self.sign * made[-1].values[0]:
                made.append(run)
        return made

    @property
    def sign(self) -> int:
        """What a score is multiplied by so that more is better."""
        return self._settings.sign

    # ---- runs ------------------------------------------------------------------------------------

    def ask(self) -> FrozenTrial:
        """Begin a run: the next that waits, else one with values that the sampler suggests."""
        with _quiet():
            return self.find(self.optuna.ask(self._distributions).number)

    def claim(self, run: FrozenTrial) -> None:
        """Make a run this process's, which one that is no more had begun."""
        self._set(run, OWNER, own_name())

    def again(self, run: FrozenTrial) -> FrozenTrial:
        """Begin a run again, with the same values."""
        with _quiet():
            if run.params.keys() < self._distributions.keys():  # it died while that was suggested
                trial = optuna.Trial(self.optuna, run._trial_id)
                for name, distribution in self._distributions.items():
                    trial._suggest(name, distribution)
        return self.find(run.number)

    def find(self, number: int) -> FrozenTrial:
        """A trial by its number."""
        return self.trials()[number]

    def note_process(self, run: FrozenTrial, process: Sequence[float]) -> None:
        """Keep which process a run is, lest it is forgotten when this one dies."""
        self._set(run, CHILD, list(process))

    def _set(self, run: FrozenTrial, name: str, value: Any) -> None:
        self.optuna._storage.set_trial_user_attr(run._trial_id, name, value)

    def tell(self, run: FrozenTrial, outcome: Outcome) -> None:
        """Keep what came of a run: its points first, so that a run that is told has all of them."""
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
        """Add a point; none that is outside of the range, where no run can be suggested."""
        values = dict(run.params)
        made = self._distributions
        if COST in made:
            values[COST] = int(point.steps)
        if not all(
            made[name]._contains(made[name].to_internal_repr(values[name])) for name in made
        ):
            return
        trial = create_trial(
            values=[point.score, point.cost],
            params=values,
            distributions=made,
            user_attrs={RUN: run.number, POINT: i},
        )
        self.optuna.add_trial(trial)


# ---- beginning, and finding again --------------------------------------------------------------


def open_study(
    storage: BaseStorage,
    name: str,
    space: Space,
    settings: SweepSettings,
    now: Mapping[str, Any],
    sampler: BaseSampler,
) -> Study:
    """The study of that name, begun if it isn't there; arguments and errors as of the two below."""
    how = storage, name, space, settings, now, sampler
    if about(storage, name) is None:
        with contextlib.suppress(optuna.exceptions.DuplicatedStudyError):
            return begin(*how)
    return go_on(*how)  # another process may have begun it just now


def begin(
    storage: BaseStorage,
    name: str,
    space: Space,
    settings: SweepSettings,
    about: Mapping[str, Any],
    sampler: BaseSampler,
) -> Study:
    """A new study, whose first run has the configuration's own values.

    Raises:
        optuna.exceptions.DuplicatedStudyError: there is one of this name.
    """
    goal = "maximize" if settings.sign > 0 else "minimize"
    with _quiet():
        study = optuna.create_study(
            storage=storage, study_name=name, directions=[goal, "minimize"], sampler=sampler
        )
        study.set_metric_names(["score", "cost"])
        defaults = {p.name: p.default for p in space.parameters if p.default is not None}
        study.enqueue_trial(defaults, user_attrs={DEFAULT: True})
        study.set_user_attr(ABOUT, json.dumps(about))
    return Study(study, space, settings)


def described(space: Space, settings: SweepSettings, config: Config) -> dict[str, Any]:
    """What has to be the same for trials to be of one sweep, by names for messages."""
    plain = to_dict(config)
    made: dict[str, Any] = {"env": config.env_name, "source": Path(plain["source"]).name}
    made |= {"sweep.metric": settings.metric, "sweep.goal": settings.goal}
    made["what is swept"] = ", ".join(space.names)
    for p in space.parameters:
        made[f"the range of {p.name}"] = f"{p.distribution} {p.low:g} to {p.high:g}"
    for section in ("base", "vec", "wrap", "policy", "torch", "train", "selfplay", "env"):
        for key, value in plain[section].items():
            name = f"{section}.{key}"
            if name not in MAY_DIFFER and name not in space.names:
                made[name] = value
    return made


def about(storage: BaseStorage, name: str, patience: float = 10.0) -> dict[str, Any] | None:
    """What a study that is there is about; None if there is none of this name.

    Args:
        storage: where it is.
        name: the study's.
        patience: seconds that another process may take to say so after it has begun it.

    Raises:
        UserError: it isn't a sweep's.
    """
    try:
        number = storage.get_study_id_from_name(name)
    except KeyError:
        return None
    until = time.monotonic() + patience
    while (text := storage.get_study_user_attrs(number).get(ABOUT)) is None:
        if time.monotonic() > until:
            raise UserError(f"the study {name} is no sweep of puffer_mlx", "choose another --name")
        time.sleep(0.05)
    return json.loads(text)


def go_on(
    storage: BaseStorage,
    name: str,
    space: Space,
    settings: SweepSettings,
    now: Mapping[str, Any],
    sampler: BaseSampler,
) -> Study:
    """A study that is there.

    Args:
        storage: where it is.
        name: the study's.
        space: what is swept now.
        settings: how.
        now: what this process's sweep is about, as ``described``.
        sampler: of further runs.

    Raises:
        UserError: it is about something else.
    """
    if line := difference(about(storage, name) or {}, now):
        hint = "go on with the options it began with, or begin another one with another --name"
        raise UserError(f"the sweep {name} is about something else: {line}", hint)
    with _quiet():
        study = optuna.load_study(storage=storage, study_name=name, sampler=sampler)
    return Study(study, space, settings)


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first thing that differs between what was swept and what is to be; empty if nothing."""
    now = json.loads(json.dumps(now))
    for name in (name for name in before if name in now):
        if before[name] != now[name]:
            return f"{name} was {before[name]}, and is {now[name]}"
    return ""


def names(storage: BaseStorage) -> list[str]:
    """The studies of a storage."""
    return [study.study_name for study in storage.get_all_studies()]
