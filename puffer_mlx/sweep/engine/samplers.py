"""Optuna samplers that suggest a sweep's next run, for this package's methods and for Optuna's.

A suggestion depends only on the sweep's seed, the trials of the study and the run's position among
them, not on the state of a process. So a sweep resumes with the same suggestions after a crash, and
processes on several machines can share a study.
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

Adjust = Callable[[Values], Values]
NEEDS = {"GP": ("scipy", "torch")}  # packages that Optuna's methods import besides NumPy


class TrialObservations:
    """Convert a study's trials to observations, in the order in which they ended.

    Args:
        space: Parameters of the trials.
        settings: Settings of the sweep.
    """

    def __init__(self, space: Space, settings: SweepSettings) -> None:
        self._space = space
        self._settings = settings
        self._seen = Observations(settings)
        self._numbers: list[int] = []  # numbers of the converted trials

    def of(self, trials: Sequence[FrozenTrial]) -> Observations:
        """Return the observations of all trials that have ended."""
        over = [(each.datetime_complete, each.number, each) for each in trials]
        over = sorted((at, number, each) for at, number, each in over if at)
        numbers = [number for _, number, _ in over]
        if numbers[: len(self._numbers)] != self._numbers:  # another machine's clock is late
            self._seen = Observations(self._settings)
            self._numbers = []
        for _, _, trial in over[len(self._numbers) :]:
            self._take(trial)
        self._numbers = numbers
        return self._seen

    def _take(self, trial: FrozenTrial) -> None:
        if not trial.params.keys() >= {*self._space.names}:
            return  # failed before it had values
        vector = self._space.to_unit(trial.params)
        if trial.state == TrialState.COMPLETE:
            self._seen.add(vector, *trial.values)
        elif trial.state == TrialState.FAIL:
            self._seen.add(vector, math.nan, 0.0, failed=True)


class SpaceSampler(BaseSampler):
    """Base class of samplers, whose suggestions are adjusted to values that can be run.

    Args:
        space: Parameters of the sweep.
        adjust: Makes values consistent.
    """

    def __init__(self, space: Space, adjust: Adjust) -> None:
        self._space = space
        self._adjust = adjust

    def suggest(self, study: optuna.Study, trial: FrozenTrial) -> Values:
        """Return the values of a new run."""
        raise NotImplementedError

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Record the owner of a run before the suggestion, which may take long or fail."""
        storage, number = storage_and_id(study, trial)
        storage.set_trial_user_attr(number, OWNER, own_name())

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the distributions of all parameters, which are suggested together."""
        return distributions(self._space)

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Return the suggested values; {} for a run with values of the configuration or a file."""
        if trial.user_attrs.keys() & {DEFAULT, GIVEN}:
            return {}
        return dict(self._adjust(self.suggest(study, trial)))

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the middle of a parameter's range, for a value that the configuration lacks."""
        return self._space.parameters[self._space.names.index(param_name)].to_value(0.0)


class MethodSampler(SpaceSampler):
    """Sampler of Protein, ParetoGenetic and Random.

    Args:
        space: Parameters of the sweep.
        adjust: Makes values consistent.
        settings: Settings of the sweep.
        seed: Seed of all random numbers.
    """

    def __init__(self, space: Space, adjust: Adjust, settings: SweepSettings, seed: int) -> None:
        super().__init__(space, adjust)
        self._method = make_method(space, settings, seed)
        self._known = TrialObservations(space, settings)

    def suggest(self, study: optuna.Study, trial: FrozenTrial) -> Values:
        """Return the method's suggestion, given all observations."""
        trials = study.get_trials(deepcopy=False)
        number = sum(each.number < trial.number for each in trials if is_run(each))
        self._method.observations = self._known.of(trials)
        vector = self._method.suggest(max(0, number - 1))  # the first run has the configured values
        return self._space.to_values(vector)


class OptunaSampler(SpaceSampler):
    """Sampler of an Optuna method, recreated for every run.

    Args:
        space: Parameters of the sweep.
        adjust: Makes values consistent.
        make: Makes a sampler from a seed.
        seed: Seed of all random numbers.
    """

    def __init__(
        self, space: Space, adjust: Adjust, make: Callable[[int], BaseSampler], seed: int
    ) -> None:
        super().__init__(space, adjust)
        self._make = make
        self._seed = seed

    def _of(self, trial: FrozenTrial) -> BaseSampler:
        """Return the sampler of a run."""
        rng = np.random.default_rng([self._seed, trial.number])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return self._make(int(rng.integers(2**31)))

    def suggest(self, study: optuna.Study, trial: FrozenTrial) -> Values:
        """Return the suggestion of Optuna's sampler, rounded like those of our methods."""
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
        """Let the sampler store its state, such as a population, in the study."""
        self._of(trial).after_trial(study, trial, state, values)


def make_sampler(space: Space, settings: SweepSettings, seed: int, adjust: Adjust) -> SpaceSampler:
    """Return the sampler of ``[sweep] method``.

    Args:
        space: Parameters of the sweep.
        settings: Settings of the sweep.
        seed: Seed of all random numbers.
        adjust: Makes values consistent.

    Raises:
        UserError: If a package that the method needs isn't installed.
    """
    if settings.method in OURS:
        return MethodSampler(space, adjust, settings, seed)
    lacking = [each for each in NEEDS.get(settings.method, ()) if not _is_there(each)]
    if lacking:
        raise UserError(
            f"the method {settings.method} needs {' and '.join(lacking)}",
            f"pip install {' '.join(lacking)}; or --sweep.method Protein",
        )
    first = settings.num_random_samples * settings.downsample  # in trials, points included
    make: dict[str, Callable[[int], BaseSampler]] = {
        "TPE": lambda seed: optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=first, constant_liar=True
        ),
        "GP": lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=first),
        "NSGAII": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
    }
    return OptunaSampler(space, adjust, make[settings.method], seed)


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
