"""The trackers of a program's trainer: told of each epoch, and once of the end."""

import time
from types import TracebackType
from typing import Self

from puffer_mlx.config import Config, trust
from puffer_mlx.system import output
from puffer_mlx.tracking.json_lines import log_path
from puffer_mlx.tracking.run_log import RunLog
from puffer_mlx.tracking.tracked_run import Trackers, asked
from puffer_mlx.training.epoch_logs import Logs


class Tracking:
    """What ``base.track`` names hears of a run; nothing is done where it names none.

    Its name there is the time when it began, in milliseconds, as the command line's runs.

    Args:
        config: of the run.
        overlap: whether rollouts are collected beside training.

    Raises:
        UserError: only a checkpoint's configuration says where trackers are to write.
    """

    def __init__(self, config: Config, overlap: bool) -> None:
        names = asked(config)
        if names:
            trust.permit_log_dir(config, new=False)
        name = str(time.time_ns() // 1_000_000)
        run = RunLog(config, name, log_path(config, name), overlap)
        self._trackers, self._over = Trackers(run, names), False

    def log(self, logs: Logs, last: bool) -> None:
        """Tell of an epoch; ``last``: it is the schedule's."""
        self._trackers.done = last
        for line in self._trackers.log(logs):
            output.say(line)

    def close(
        self,
        kind: type | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """Tell of the end, and wait until they know it. Calling it twice is harmless."""
        if not self._over:
            self._over = True
            self._trackers.__exit__(kind, error, trace)

    def __enter__(self) -> Self:
        return self

    __exit__ = close
