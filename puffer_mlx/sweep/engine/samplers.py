"""What suggests a sweep's next run, as samplers of Optuna: this room's methods, and Optuna's own.

Every suggestion depends on the sweep's seed, the trials in the study and the run's place among
them, and on nothing that a process remembers. So a sweep that was killed goes on with the
suggestions that it would have made, and processes on several machines share a study.
"""

import importlib.util
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from puffer_mlx.errors import UserError
from puffer_mlx.sweep.engine.study import (
    DEFAULT,
    GIVEN,
    OWNER,
    distributions,
    is_run,
    own_name,
    storage_and_id,
)
from puffer_mlx.sweep.methods import make_method
from puffer_mlx.sweep.observations import Observations
from puffer_mlx.sweep.settings import OURS, SweepSettings
from puffer_mlx.sweep.space import Space, Values

Settle = Callable[[Values], Values]
NEEDS = {"GP": ("scipy", "torch")}  # what Optuna's own methods import besides NumPy


class TrialObservations:
    """A study's trials as observations, each taken once, in the order in which they ended.

    Args:
        space: of the trials' values.
        settings: how scores are entered.
    """

    def __init__(self, space: Space, settings: SweepSettings) -> None:
        self._space, self._settings = space, settings
        self._seen = Observations(settings)
        self._numbers: list[int] = []  # of the trials that are taken

    def of(self, trials: Sequence[FrozenTrial]) -> Observations:
        """All that ended so far."""
        over = [(each.datetime_complete, each.number, each) for each in trials]
        over = sorted((at, number, each) for at, number, each in over if at)
        numbers = [number for _, number, _ in over]
        if numbers[: len(self._numbers)] != self._numbers:  # another machine's clock is behind
            self._seen, self._numbers = Observations(self._settings), []
        for _, _, trial in over[len(self._numbers) :]:
            self._take(trial)
        self._numbers = numbers
        return self._seen

    def _take(self, trial: FrozenTrial) -> None:
        if not trial.params.keys() >= {*self._space.names}:
            return  # it failed before it had any
        vector = self._space.to_unit(trial.params)
        if trial.state == TrialState.COMPLETE:
            self._seen.add(vector, *trial.values)
        elif trial.state == TrialState.FAIL:
            self._seen.add(vector, math.nan, 0.0, failed=True)


class SpaceSampler(BaseSampler):
    """What all of them share: values as they can be run.

    Args:
        space: what is swept.
        settle: makes values fit one another.
    """

    def __init__(self, space: Space, settle: Settle) -> None:
        self._space, self._settle = space, settle

    def suggest(self, study: optuna.Study, trial: FrozenTrial) -> Values:
        """Values of a run that begins."""
        raise NotImplementedError

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Say at once whose run it is: a suggestion may take a while, and a process may die."""
        storage, number = storage_and_id(study, trial)
        storage.set_trial_user_attr(number, OWNER, own_name())

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All parameters: they are suggested together."""
        return distributions(self._space)

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Suggested values; none of a run that has the configuration's own, or a file's."""
        if trial.user_attrs.keys() & {DEFAULT, GIVEN}:
            return {}
        return dict(self._settle(self.suggest(study, trial)))

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A value that the configuration lacks: the middle of its range."""
        return self._space.parameters[self._space.names.index(param_name)].to_value(0.0)


class MethodSampler(SpaceSampler):
    """Protein, ParetoGenetic and Random.

    Args:
        space: what is swept.
        settle: makes values fit one another.
        settings: of the method.
        seed: of all that is random.
    """

    def __init__(self, space: Space, settle: Settle, settings: SweepSettings, seed: int) -> None:
        super().__init__(space, settle)
        self._method, self._known = (
            make_method(space, settings, seed),
            TrialObservations(space, settings),
        )

    def suggest(self, study: optuna.Study, trial: FrozenTrial) -> Values:
        """The method's suggestion, told of all that is known."""
        trials = study.get_trials(deepcopy=False)
        number = sum(each.number < trial.number for each in trials if is_run(each))
        self._method.observations = self._known.of(trials)
        vector = self._method.suggest(max(0, number - 1))  # the first is the file's
        return self._space.to_values(vector)


class OptunaSampler(SpaceSampler):
    """A method of Optuna's, made anew for every run.

    Args:
        space: what is swept.
        settle: makes values fit one another.
        make: the sampler of a seed.
        seed: of all that is random.
    """

    def __init__(
        self, space: Space, settle: Settle, make: Callable[[int], BaseSampler], seed: int
    ) -> None:
        super().__init__(space, settle)
        self._make, self._seed = make, seed

    def _of(self, trial: FrozenTrial) -> BaseSampler:
        """The sampler of one run."""
        draw = np.random.default_rng([self._seed, trial.number])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return self._make(int(draw.integers(2**31)))

    def suggest(self, study: optuna.Study, trial: FrozenTrial) -> Values:
        """Its suggestion, rounded as this room's are."""
        sampler = self._of(trial)
        with warnings.catch_warnings(action="ignore"):
            sampler.before_trial(study, trial)
            together = sampler.infer_relative_search_space(study, trial)
            values = sampler.sample_relative(study, trial, together)
            for name, distribution in self.infer_relative_search_space(study, trial).items():
                if name not in values:
                    values[name] = sampler.sample_independent(study, trial, name, distribution)
        parameters = self._space.parameters
        return {p.name: p.to_value(p.to_unit(values[p.name])) for p in parameters}

    def after_trial(self, study: optuna.Study, trial: FrozenTrial, state, values) -> None:
        """What the sampler keeps in the study, of populations."""
        self._of(trial).after_trial(study, trial, state, values)


def make_sampler(space: Space, settings: SweepSettings, seed: int, settle: Settle) -> SpaceSampler:
    """The sampler of ``[sweep] method``.

    Args:
        space: what is swept.
        settings: how.
        seed: of all that is random.
        settle: makes values fit one another.

    Raises:
        UserError: what the method needs isn't installed.
    """
    if settings.method in OURS:
        return MethodSampler(space, settle, settings, seed)
    lacking = [each for each in NEEDS.get(settings.method, ()) if not _is_there(each)]
    if lacking:
        raise UserError(
            f"the method {settings.method} needs {' and '.join(lacking)}",
            f"pip install {' '.join(lacking)}; or --sweep.method Protein",
        )
    first = settings.num_random_samples * settings.downsample  # trials; each run has its points
    make: dict[str, Callable[[int], BaseSampler]] = {
        "TPE": lambda seed: optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=first, constant_liar=True
        ),
        "GP": lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=first),
        "NSGAII": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
    }
    return OptunaSampler(space, settle, make[settings.method], seed)


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
