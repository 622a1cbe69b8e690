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
    FROM_CONFIG,
    FROM_FILE,
    OWNER,
    distributions,
    is_run,
    process_name,
    storage_and_id,
)
from puffer_mlx.sweep.methods import make_method
from puffer_mlx.sweep.observations import Observations
from puffer_mlx.sweep.settings import BUILT_IN_METHODS, SweepSettings
from puffer_mlx.sweep.space import Space, Values

Adjust = Callable[[Values], Values]
# Packages that Optuna's methods import besides NumPy.
REQUIRED_PACKAGES = {"GP": ("scipy", "torch")}


class TrialObservations:
    """Converter of a sweep's ended trials to the observations that its search method uses.

    Observations are in the order in which the trials ended.

    Args:
        space: Parameters of the trials.
        settings: Settings of the sweep.
    """

    def __init__(self, space: Space, settings: SweepSettings) -> None:
        self._space = space
        self._settings = settings
        self._observations = Observations(settings)
        self._converted: list[int] = []  # numbers of the converted trials

    def update(self, trials: Sequence[FrozenTrial]) -> Observations:
        """Add the trials that ended since the last call to the observations. Returns all."""
        ended = [(each.datetime_complete, each.number, each) for each in trials]
        ended = sorted((at, number, each) for at, number, each in ended if at)
        trial_numbers = [number for _, number, _ in ended]
        # With different clocks of several machines, trials may be inserted before known ones.
        if trial_numbers[: len(self._converted)] != self._converted:
            self._observations = Observations(self._settings)
            self._converted = []
        for _, _, trial in ended[len(self._converted) :]:
            self._add(trial)
        self._converted = trial_numbers
        return self._observations

    def _add(self, trial: FrozenTrial) -> None:
        """Add an ended trial to the search's observations, as a result or as a failure."""
        if not trial.params.keys() >= {*self._space.names}:
            return  # failed before it had values
        vector = self._space.to_coordinate(trial.params)
        if trial.state == TrialState.COMPLETE:
            self._observations.add(vector, *trial.values)
        elif trial.state == TrialState.FAIL:
            self._observations.add(vector, math.nan, 0.0, failed=True)


class SpaceSampler(BaseSampler):
    """Base class of a sweep's samplers: adjusts each suggestion to values that can be run.

    Args:
        space: Parameters of the sweep.
        adjust: Makes values consistent.
    """

    def __init__(self, space: Space, adjust: Adjust) -> None:
        self._space = space
        self._adjust = adjust

    def suggest(self, study: optuna.Study, trial: FrozenTrial) -> Values:
        """Suggest the parameter values of a sweep's new run."""
        raise NotImplementedError

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Record this process as the owner of a sweep's new run.

        This is done before values are suggested for the run, which may take long or fail.
        """
        storage, number = storage_and_id(study, trial)
        storage.set_trial_user_attr(number, OWNER, process_name())

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return Optuna's distributions of all searched parameters, suggested together."""
        return distributions(self._space)

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Return suggested parameter values for a run; {} if a configuration or file set them."""
        if trial.user_attrs.keys() & {FROM_CONFIG, FROM_FILE}:
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
    """Sampler for the methods of this package: Protein, ParetoGenetic and Random.

    Args:
        space: Parameters of the sweep.
        adjust: Makes values consistent.
        settings: Settings of the sweep.
        seed: Seed of all random numbers.
    """

    def __init__(self, space: Space, adjust: Adjust, settings: SweepSettings, seed: int) -> None:
        super().__init__(space, adjust)
        self._method = make_method(space, settings, seed)
        self._trial_observations = TrialObservations(space, settings)

    def suggest(self, study: optuna.Study, trial: FrozenTrial) -> Values:
        """Suggest a new run's parameter values with the search method, given all observations."""
        trials = study.get_trials(deepcopy=False)
        number = sum(each.number < trial.number for each in trials if is_run(each))
        self._method.observations = self._trial_observations.update(trials)
        vector = self._method.suggest(max(0, number - 1))  # run 0 has the configured values
        return self._space.to_values(vector)


class OptunaSampler(SpaceSampler):
    """Sampler for Optuna's methods. Optuna's sampler is created anew for every run.

    Args:
        space: Parameters of the sweep.
        adjust: Makes values consistent.
        make: Makes an Optuna sampler from a seed.
        seed: Seed of all random numbers.
    """

    def __init__(
        self, space: Space, adjust: Adjust, make: Callable[[int], BaseSampler], seed: int
    ) -> None:
        super().__init__(space, adjust)
        self._make = make
        self._seed = seed

    def _make_sampler(self, trial: FrozenTrial) -> BaseSampler:
        """Create Optuna's sampler for a run, with a seed that depends on the run's number."""
        rng = np.random.default_rng([self._seed, trial.number])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return self._make(int(rng.integers(2**31)))

    def suggest(self, study: optuna.Study, trial: FrozenTrial) -> Values:
        """Return the parameter values that Optuna's sampler suggests, rounded for integer keys."""
        sampler = self._make_sampler(trial)
        with warnings.catch_warnings(action="ignore"):
            sampler.before_trial(study, trial)
            search_space = sampler.infer_relative_search_space(study, trial)
            values = sampler.sample_relative(study, trial, search_space)
            for name, distribution in self.infer_relative_search_space(study, trial).items():
                if name not in values:
                    values[name] = sampler.sample_independent(study, trial, name, distribution)
        parameters = self._space.parameters
        return {p.name: p.to_value(p.to_coordinate(values[p.name])) for p in parameters}

    def after_trial(self, study: optuna.Study, trial: FrozenTrial, state, values) -> None:
        """After a run, let Optuna's sampler store its state, such as a population, in the study."""
        self._make_sampler(trial).after_trial(study, trial, state, values)


def make_sampler(space: Space, settings: SweepSettings, seed: int, adjust: Adjust) -> SpaceSampler:
    """Create the sampler for ``[sweep] method``.

    Args:
        space: Parameters of the sweep.
        settings: Settings of the sweep.
        seed: Seed of all random numbers.
        adjust: Makes values consistent.

    Raises:
        UserError: If a package that the method needs isn't installed.
    """
    if settings.method in BUILT_IN_METHODS:
        return MethodSampler(space, adjust, settings, seed)
    missing = [
        each for each in REQUIRED_PACKAGES.get(settings.method, ()) if not _is_installed(each)
    ]
    if missing:
        raise UserError(
            f"the method {settings.method} needs {' and '.join(missing)}",
            f"pip install {' '.join(missing)}; or --sweep.method Protein",
        )
    startup_trials = settings.num_random_samples * settings.downsample  # trials include points
    make: dict[str, Callable[[int], BaseSampler]] = {
        "TPE": lambda seed: optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=startup_trials, constant_liar=True
        ),
        "GP": lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup_trials),
        "NSGAII": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
    }
    return OptunaSampler(space, adjust, make[settings.method], seed)


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
