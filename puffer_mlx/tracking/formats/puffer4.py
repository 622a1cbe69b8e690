"""PufferLib 4.0's log: ``log_dir/ENV/RUN_ID.json``, the configuration and a run's curves.

All of the configuration, [base] at the top and each other section in a dictionary, and
``metrics``: lists by a record's keys. A list has the mean of each of P - 1 parts of the run (fewer
of a short one) and the final record's value, P being ``[sweep] downsample``. As Python writes it,
so what isn't a number is ``NaN``.

A record takes over what the one before had and it lacks itself, as upstream's do. The lists have
every key of the final record; upstream's have those of the first one alone.
"""

import json
from collections import deque
from collections.abc import Iterator
from typing import Any

from puffer_mlx.config.values import parse_argument
from puffer_mlx.tracking.formats import LogFormat
from puffer_mlx.tracking.run_log import Record, RunLog, columns, means

HERE: dict[str, dict[str, Any]] = {  # what 4.0's files say besides, and is so of every run here
    "base": {"rank": 0, "world_size": 1, "gpu_id": 0, "cudagraphs": -1},
}


def text(run: RunLog) -> str:
    """A run as one JSON object."""
    (final,) = deque(_merged(run), maxlen=1)
    steps, final = final["agent_steps"], {**final, **run.evaluation()}
    parts = means(_and_last(_merged(run), final), steps, run.points - 1)
    return json.dumps({**_settings(run), "metrics": columns(parts, final)})


def _merged(run: RunLog) -> Iterator[Record]:
    """The records, from the first with the metric on; each with what the ones before had."""
    known: Record = {}
    for record in run.epochs():
        known = {**known, **record}
        if run.metric in known:
            yield known


def _and_last(records: Iterator[Record], final: Record) -> Iterator[Record]:
    yield from records
    yield final


def _settings(run: RunLog) -> dict[str, Any]:
    """The configuration in nested dictionaries, as 4.0's ``load_config`` returns it."""
    settings = run.settings()
    sweep, source = settings.pop("sweep"), settings.pop("source")
    settings["env"] |= {"source": source} if source else {}
    for section, keys in HERE.items():
        settings[section] = {**keys, **settings.get(section, {})}
    for section, keys in sweep.items():
        inner = settings
        for name in section.split("."):
            inner = inner.setdefault(name, {})
        inner.update({key: parse_argument(text) for key, text in keys.items()})
    return {**settings.pop("base"), **settings}


FORMAT = LogFormat(".json", text)
