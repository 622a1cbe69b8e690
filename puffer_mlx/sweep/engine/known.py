"""What a study's trials say, as observations; and which runs are to end early by them."""

import math
from collections.abc import Callable, Sequence

from optuna.trial import FrozenTrial, TrialState

from puffer_mlx.sweep.curve import Point
from puffer_mlx.sweep.early_stop import EarlyStop, threshold
from puffer_mlx.sweep.engine.study import Study
from puffer_mlx.sweep.observations import Observations
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import Space

Judge = Callable[[Sequence[Point]], str]  # why a run with these points is to end; "": it isn't


class Known:
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


def judging(study: Study, space: Space, settings: SweepSettings) -> Callable[[], Judge]:
    """What makes, for each run that begins, what says when it is to end.

    Args:
        study: what is known.
        space: of its values.
        settings: how early.
    """
    known = Known(space, settings)

    def make() -> Judge:
        seen = known.of(study.trials())
        stop = EarlyStop(threshold(seen, settings.stop_quantile, settings.spares_dear))

        def judge(points: Sequence[Point]) -> str:
            for score, cost, _ in points:
                if stop.should_stop(cost, seen.entered(score)):
                    return (
                        f"a score of {score:.3f} after {cost:.0f} s is less than other runs had"
                        " for that"
                    )
            return ""

        return judge

    return make
