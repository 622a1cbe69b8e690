"""A run's log in the form of another program: one file of this folder for each.

``base.log_format`` is a file's name here. A file's ``FORMAT`` is its ``LogFormat``; nothing else
needs to know of it.
"""

import contextlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import NamedTuple

from puffer_mlx.config.schema import JSON_LINES
from puffer_mlx.errors import UserError
from puffer_mlx.system import output
from puffer_mlx.system.files import publish, relative
from puffer_mlx.tracking.run_log import RunLog


class LogFormat(NamedTuple):
    """A form of logs.

    Args:
        suffix: of the file's name.
        text: what the file of a run is. The run has a record with ``RunLog.metric``.
    """

    suffix: str
    text: Callable[[RunLog], str]


def find(name: str) -> LogFormat:
    """The form of that name: a file of this folder."""
    return import_module(f"{__name__}.{name}").FORMAT


@contextlib.contextmanager
def further_log(run: RunLog) -> Iterator[None]:
    """A block around a run, which ends after the run's lines of JSON are closed.

    Writes the log that ``base.log_format`` asks for besides our own. However the run ends, by an
    error too, the file tells what was trained so far; a run that goes on replaces it. It is
    published by rename. A process that is killed writes none.

    Raises:
        UserError: ``[sweep] downsample`` is no number of points, or the file can't be written.
    """
    if run.config.base.log_format == JSON_LINES:
        yield
        return
    assert run.points
    try:
        yield
    except BaseException:  # which a full disk doesn't hide
        try:
            _write(run)
        except UserError as fault:
            output.say(f"log   not written: {str(fault).splitlines()[0]}")
        raise
    _write(run)


def _write(run: RunLog) -> None:
    form, metric = find(run.config.base.log_format), run.metric
    path = run.path.with_suffix(form.suffix)
    if not any(metric in record for record in run.epochs()):
        output.say(f"log   {relative(path)} is not written: no record has {metric}")
        return
    text = form.text(run)
    with publish(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    output.say(f"log   {relative(path)}")
