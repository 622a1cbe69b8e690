"""A run's log in another form, too, written when the run ends: ``base.log_format``."""

import contextlib
from types import TracebackType
from typing import Self

from puffer_mlx.config.schema import JSON_LINES
from puffer_mlx.errors import UserError
from puffer_mlx.system import output
from puffer_mlx.system.files import publish
from puffer_mlx.tracking.formats import find
from puffer_mlx.tracking.run_log import RunLog


class FurtherLog:
    """A context manager around a run, which ends after the run's lines of JSON are closed.

    However the run ends, by an error too, the file tells what was trained so far; a run that goes
    on replaces it. It is published by rename. A process that is killed writes none.

    Args:
        run: with another ``base.log_format`` than our own.

    Raises:
        UserError: ``[sweep] downsample`` is no number of points.
    """

    def __init__(self, run: RunLog) -> None:
        self._run, self._form = run, find(run.config.base.log_format)
        self.path = run.path.with_suffix(self._form.suffix)
        assert run.points

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._write()
        except UserError as fault:
            if error is None:
                raise
            output.say(f"log   not written: {str(fault).splitlines()[0]}")

    def _write(self) -> None:
        metric = self._run.metric
        if not any(metric in record for record in self._run.epochs()):
            output.say(f"log   {self.path} is not written: no record has {metric}")
            return
        text = self._form.text(self._run)
        with publish(self.path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        output.say(f"log   {self.path}")


def further_log(run: RunLog) -> contextlib.AbstractContextManager:
    """What writes the log that ``base.log_format`` asks for besides our own; nothing if none."""
    own = run.config.base.log_format == JSON_LINES
    return contextlib.nullcontext() if own else FurtherLog(run)
