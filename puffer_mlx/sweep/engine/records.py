"""What a sweep keeps in its folder as it goes on: runs' records for viewers, and the best."""

from collections.abc import Sequence

from optuna.trial import FrozenTrial

from puffer_mlx.errors import UserError
from puffer_mlx.sweep.engine.driver import Going
from puffer_mlx.sweep.engine.study import FINISHED, Study, curves
from puffer_mlx.sweep.engine.table import Screen
from puffer_mlx.sweep.engine.trainings import Trainings
from puffer_mlx.system import voice


class Records:
    """Told by a ``Driver``; tells a screen, and writes files.

    Args:
        study: the sweep's trials.
        trainings: its runs' files.
        screen: what a person sees.
    """

    def __init__(self, study: Study, trainings: Trainings, screen: Screen) -> None:
        self._study, self._trainings, self._screen = study, trainings, screen
        self._best = -1  # the run whose configuration is written
        self._faults: list[str] = []

    def draw(self, going: Sequence[Going]) -> None:
        """Called a few times a second."""
        self._screen.draw(going)

    def ended(self, run: FrozenTrial) -> None:
        """A run is over with all of its seeds."""
        self._screen.ended(run)
        try:
            if run.state in FINISHED:
                for seed in curves(run) or [0]:
                    self._trainings.publish(run, seed)
            self._write_best()
        except UserError as error:  # the sweep matters more
            self._faults.append(str(error))

    def conclude(self) -> None:
        """Write what is left to be written; say what couldn't be."""
        self._write_best()
        for line in dict.fromkeys(self._faults):
            voice.note(line, error=True)

    def _write_best(self) -> None:
        best = self._study.best()
        if best is not None and best.number != self._best:
            self._trainings.write_best(best)
            self._best = best.number
