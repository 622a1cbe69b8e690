"""A run's lines of JSON read back, as what the logs of other programs are made from."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from puffer_mlx.config import Config, to_dict
from puffer_mlx.config.values import unquoted
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import reading
from puffer_mlx.system.json_text import record_of

Record = dict[str, float]
POINTS = 5  # of every number in upstream's logs, if [sweep] doesn't say


@dataclass(frozen=True)
class RunLog:
    """A run, and the records that it has written so far.

    Args:
        config: the effective one.
        run_id: the run's name.
        path: its lines of JSON (``JsonLines``).
        overlap: whether rollouts were collected beside training, which the configuration may have
            left open.
    """

    config: Config
    run_id: str
    path: Path
    overlap: bool

    def settings(self) -> dict[str, Any]:
        """The configuration as plain nested dictionaries, nothing left open."""
        settings = to_dict(self.config)
        settings["base"]["run_id"] = self.run_id
        settings["train"]["overlap"] = self.overlap
        usual = {"metric": self.metric.removeprefix("env/"), "downsample": str(self.points)}
        settings["sweep"] = {**settings["sweep"], "sweep": {**usual, **self._sweep}}
        return settings

    @property
    def metric(self) -> str:
        """The number that ranks policies, by its name in a record."""
        return self.config.metric

    @property
    def points(self) -> int:
        """How many values of each number upstream keeps: ``[sweep] downsample``.

        Raises:
            UserError: it isn't a positive number.
        """
        text = unquoted(self._sweep.get("downsample", str(POINTS)))
        try:
            points = int(float(text.replace("_", "")))
        except (ValueError, OverflowError):
            points = 0
        if points < 1:
            raise UserError(f"sweep.downsample is {text!r}", f"a whole number, {POINTS} say")
        return points

    def epochs(self) -> Iterator[Record]:
        """The records of epochs, in their order; what wasn't finite is NaN."""
        return (record for record in self._records() if "epoch" in record)

    def evaluation(self) -> Record:
        """``env/*`` of the evaluation after training; empty if there was none."""
        last = next((record for record in self._records() if "epoch" not in record), {})
        return {name: value for name, value in last.items() if name.startswith("env/")}

    @property
    def _sweep(self) -> dict[str, str]:
        return self.config.sweep.get("sweep", {})

    def _records(self) -> Iterator[Record]:
        hint = "was the file edited? Other programs' logs are made from it"
        with reading(self.path), open(self.path, encoding="utf-8", errors="replace") as file:
            for line in file:
                record = record_of(line)
                if record is None or ("epoch" in record and "agent_steps" not in record):
                    raise UserError(f"{self.path}: {line[:40]!r} is no record", hint)
                yield {name: math.nan if x is None else x for name, x in record.items()}


def means(records: Iterator[Record], steps: float, bins: int) -> list[Record]:
    """Means over parts of a run, upstream's rule.

    A part ends with the first record whose ``agent_steps`` have reached the next multiple of
    ``steps / bins``: one record ends one part at most. What no such record follows is left out.

    Args:
        records: in the order of their ``agent_steps``.
        steps: of the whole run.
        bins: parts; there are fewer where records are.

    Returns:
        A record for each part, each number the mean over the part's records that have it.
    """
    parts: list[Record] = []
    sums: Record = {}
    counts: dict[str, int] = {}
    for record in records:
        for name, value in record.items():
            sums[name] = sums.get(name, 0) + value
            counts[name] = counts.get(name, 0) + 1
        if record["agent_steps"] * bins >= (len(parts) + 1) * steps:
            parts.append({name: total / counts[name] for name, total in sums.items()})
            sums, counts = {}, {}
    return parts


def columns(parts: list[Record], final: Record) -> dict[str, list[float]]:
    """Each of the final record's numbers in every part, and at the end its final value.

    Where a part hasn't a number it is that of the part before, or of the first that has it.
    """
    table = {}
    for name in final:
        values = [part[name] for part in [*parts, final] if name in part]
        column: list[float] = []
        for part in parts:
            column.append(part.get(name, column[-1] if column else values[0]))
        table[name] = [*column, final[name]]
    return table
