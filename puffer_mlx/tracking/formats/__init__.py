"""A run's log in the form of another program: one file of this folder for each.

``base.log_format`` is a file's name here. A file's ``FORMAT`` is its ``LogFormat``; nothing else
needs to know of it.
"""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

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
