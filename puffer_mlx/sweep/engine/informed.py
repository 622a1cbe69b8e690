"""What a study knows, told to what learns from it: methods, and what ends runs early."""

import math
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from puffer_mlx.sweep.curve import Point
from puffer_mlx.sweep.early_stop import EarlyStop, threshold
from puffer_mlx.sweep.engine.study import Study
from puffer_mlx.sweep.observations import Observations
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import Space


class _Observes(Protocol):
    def observe(
        self, vector: np.ndarray, score: float, cost: float, failed: bool = False
    ) -> None: ...


Learner = TypeVar("Learner", bound=_Observes)


class Informed(Generic[Learner]):
    """Something that was told of a study's trials, each once, in the order in which they ended.

    Args:
        space: of the trials' values.
        make: makes it anew, knowing nothing.
    """

    def __init__(self, space: Space, make: Callable[[], Learner]) -> None:
        self._space, self._make = space, make
        self._learner = make()
        self._numbers: list[int] = []  # of the trials that it knows

    def of(self, trials: Sequence[FrozenTrial]) -> Learner:
        """It, told of all that ended so far."""
        over = [(each.datetime_complete, each.number, each) for each in trials]
        over = sorted((at, number, each) for at, number, each in over if at)
        numbers = [number for _, number, _ in over]
        if numbers[: len(self._numbers)] != self._numbers:  # another machine's clock is behind
            self._learner, self._numbers = self._make(), []
        for _, _, trial in over[len(self._numbers) :]:
            self._tell(trial)
        self._numbers = numbers
        return self._learner

    def _tell(self, trial: FrozenTrial) -> None:
        if not trial.params.keys() >= {*self._space.names}:
            return  # it failed before it had any
        vector = self._space.to_unit(trial.params)
        if trial.state == TrialState.COMPLETE:
            self._learner.observe(vector, *trial.values)
        elif trial.state == TrialState.FAIL:
            self._learner.observe(vector, math.nan, 0.0, failed=True)


class Seen:
    """Observations alone.

    Args:
        settings: how scores are entered.
    """

    def __init__(self, settings: SweepSettings) -> None:
        self.observations = Observations(settings)

    def observe(self, vector: np.ndarray, score: float, cost: float, failed: bool = False) -> None:
        """Take one."""
        self.observations.add(vector, score, cost, failed)


class Judges:
    """Makes, for each run that begins, what says when it is to end.

    Args:
        study: what is known.
        space: of its values.
        settings: how early.
    """

    def __init__(self, study: Study, space: Space, settings: SweepSettings) -> None:
        self._study, self._settings = study, settings
        self._informed = Informed(space, lambda: Seen(settings))

    def __call__(self) -> Callable[[Sequence[Point]], str]:
        """A judge of one run: why it is to end, empty while it isn't."""
        seen = self._informed.of(self._study.trials()).observations
        settings = self._settings
        stop = EarlyStop(threshold(seen, settings.stop_quantile, settings.spares_dear))

        def judge(points: Sequence[Point]) -> str:
            for point in points:
                if stop.should_stop(point.cost, seen.entered(point.score)):
                    return (
                        f"a score of {point.score:.3f} after {point.cost:.0f} s is less than"
                        " other runs had for that"
                    )
            return ""

        return judge
