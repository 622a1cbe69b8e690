r"""What is searched: parameters, each with a range that is -1 to 1 of a coordinate.

| distribution | a value's place, linear in z | rounding |
| --- | --- | --- |
| uniform | v | |
| int_uniform | v | v |
| uniform_pow2 | log2 v | log2 v |
| log_normal | log10 v | |
| logit_normal | -log10(1 - v) | |

Values of keys that are whole numbers are rounded, whatever the distribution (PufferLib lets its
trainer cut them off, and learns from the fractions that were never run).

Source: PufferLib 4.0's parameter spaces.

Methods choose each number on its own, and many of their first suggestions don't fit together: a
minibatch larger than an epoch, training that is shorter than one. ``fit`` moves what is swept to
where it fits, within its range, as the configuration moves what its files say (``config/fit.py``).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from puffer_mlx.config import Config

COST = "train.total_timesteps"  # the parameter that says how long a run is
AUTO_SCALE = 0.5


class Distribution(NamedTuple):
    """How values lie on a line; functions of arrays.

    Args:
        place: a value's place on the line; grows with it.
        value: the value of a place.
        above: legal values are larger than this.
        below: legal values are smaller than this.
        rounds_places: only whole places are values.
        rounds_values: only whole values are.
    """

    place: Callable[[np.ndarray], np.ndarray]
    value: Callable[[np.ndarray], np.ndarray]
    above: float = -math.inf
    below: float = math.inf
    rounds_places: bool = False
    rounds_values: bool = False


DISTRIBUTIONS = {
    "uniform": Distribution(lambda v: v, lambda p: p),
    "int_uniform": Distribution(lambda v: v, lambda p: p, rounds_values=True),
    "uniform_pow2": Distribution(np.log2, np.exp2, above=0.0, rounds_places=True),
    "log_normal": Distribution(np.log10, lambda p: 10.0**p, above=0.0),
    "logit_normal": Distribution(lambda v: -np.log10(1 - v), lambda p: 1 - 10.0**-p, below=1.0),
}


@dataclass(frozen=True)
class Parameter:
    """One key that is searched.

    Args:
        section: the key's section, without ``sweep.``: ``train``.
        key: the key, by its name here: ``learning_rate``.
        distribution: one of ``DISTRIBUTIONS``.
        low: the range's smallest value.
        high: its largest.
        scale: half the width of the box around a good value in which the next is looked for; 2 is
            the whole range.
        whole: whether values are whole numbers.
        default: the configuration's own value; None if it has none.
    """

    section: str
    key: str
    distribution: str
    low: float
    high: float
    scale: float = AUTO_SCALE
    whole: bool = False
    default: float | None = None

    @property
    def name(self) -> str:
        """The key with its section: ``train.learning_rate``."""
        return f"{self.section}.{self.key}"

    @property
    def recorded_default(self) -> float | None:
        """The default as a trial records it; None if there is none.

        Optuna takes the logarithm of what is searched on a log scale, which 0 doesn't have: the
        trial of a run with 0 has the nearer end of the range, as its vector does (``to_unit``).
        """
        if self.default is None or self._shape.above < self.default:
            return self.default
        return self.to_value(self.to_unit(self.default))

    @property
    def _shape(self) -> Distribution:
        return DISTRIBUTIONS[self.distribution]

    @cached_property
    def _ends(self) -> tuple[float, float]:
        """The places of the range's ends."""
        low, high = self._shape.place(np.array([self.low, self.high], float))
        return float(low), float(high)

    def to_unit(self, value: float) -> float:
        """A value's coordinate: -1 at ``low``, 1 at ``high``, further out beyond them.

        A value that the distribution doesn't know (the logarithm's 0) is as the range's nearer end.
        """
        shape, (first, last) = self._shape, self._ends
        if not shape.above < value < shape.below:
            return -1.0 if value <= shape.above else 1.0
        place = float(shape.place(np.array(value, float)))
        return 2 * (place - first) / (last - first) - 1

    def to_value(self, unit: float) -> int | float:
        """The value at a coordinate, which is cut off to -1 to 1; an int if it is to be whole."""
        value = float(self.to_values(np.array([unit], float))[0])
        return int(value) if self.whole else value

    def to_values(self, units: np.ndarray) -> np.ndarray:
        """Values at coordinates, (n,) float64, rounded where values are whole."""
        shape, (first, last) = self._shape, self._ends
        places = first + (np.clip(units, -1, 1) + 1) / 2 * (last - first)
        if shape.rounds_places:
            places = np.clip(np.rint(places), math.ceil(first), math.floor(last))
        values = np.clip(shape.value(places), self.low, self.high)
        if self.whole or shape.rounds_values:
            values = np.clip(np.rint(values), math.ceil(self.low), math.floor(self.high))
        return values

    def to_units(self, values: np.ndarray) -> np.ndarray:
        """Coordinates of values that the distribution knows, (n,) float64."""
        first, last = self._ends
        return 2 * (self._shape.place(values) - first) / (last - first) - 1


class Space:
    """All parameters of a sweep, in a fixed order: the coordinates of its vectors.

    Args:
        parameters: d of them.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        self.names = tuple(parameter.name for parameter in self.parameters)
        self.scales = np.array([parameter.scale for parameter in self.parameters])  # (d,)

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def cost(self) -> int | None:
        """The coordinate that says how long a run is; None if all runs are equally long."""
        return self.names.index(COST) if COST in self.names else None

    @property
    def default(self) -> np.ndarray:
        """(d,): the configuration's own values; the middle of the range where it has none."""
        known = ((p, p.default) for p in self.parameters)
        return np.array([0.0 if value is None else p.to_unit(value) for p, value in known])

    def to_unit(self, values: Mapping[str, float]) -> np.ndarray:
        """(d,): the vector of values by their names, ``train.gamma``; all of them."""
        return np.array([p.to_unit(values[p.name]) for p in self.parameters])

    def to_values(self, vector: np.ndarray) -> dict[str, int | float]:
        """Values by their names, as they are run; ints where values are whole."""
        pairs = zip(self.parameters, vector, strict=True)
        return {parameter.name: parameter.to_value(unit) for parameter, unit in pairs}

    def as_run(self, vectors: np.ndarray) -> np.ndarray:
        """(n, d): the vectors of the values that vectors stand for, after all rounding."""
        columns = zip(self.parameters, vectors.T, strict=True)
        return np.stack([p.to_units(p.to_values(units)) for p, units in columns], axis=1)

    def around(
        self,
        centres: np.ndarray,
        draw: np.random.Generator,
        moved: float | np.ndarray | None = None,
        size: float | np.ndarray = 1.0,
    ) -> np.ndarray:
        """(n, d): a vector drawn from the box around each of (n, d) centres, within the space.

        Args:
            centres: middles of the boxes.
            draw: where chance comes from.
            moved: how probably a coordinate leaves its centre's, one number or (n, 1); at least
                one coordinate does. None: all do.
            size: of the box, as a part of the scales, one number or (n, 1).
        """
        steps = draw.uniform(-1, 1, centres.shape) * self.scales * size
        if moved is not None:
            chosen = draw.random(centres.shape) < moved
            chosen[np.arange(len(chosen)), draw.integers(len(self), size=len(chosen))] = True
            steps = steps * chosen
        return np.clip(np.clip(centres, -1, 1) + steps, -1, 1)


# ---- sizes that fit one another ------------------------------------------------------------------

Values = dict[str, int | float]
AGENTS, HORIZON = "vec.total_agents", "train.horizon"
MINIBATCH, REPLAY = "train.minibatch_size", "train.replay_ratio"


# What doesn't fit, by all sizes' names; and keys and what they are multiplied by until it does, of
# the first that is swept and not at the end of its range. A key only ever moves in one direction,
# so that this ends.
MOVES: tuple[tuple[Callable[[Mapping[str, float]], bool], tuple[tuple[str, float], ...]], ...] = (
    (
        lambda size: size[MINIBATCH] > size[AGENTS] * size[HORIZON],
        ((MINIBATCH, 1 / 2), (HORIZON, 2), (AGENTS, 2)),
    ),
    (
        lambda size: size[REPLAY] * size[AGENTS] * size[HORIZON] < size[MINIBATCH],
        ((MINIBATCH, 1 / 2), (REPLAY, 5 / 4), (HORIZON, 2), (AGENTS, 2)),
    ),
    (lambda size: size[COST] < size[AGENTS] * size[HORIZON], ((COST, 5 / 4),)),
)


def fit(values: Values, space: Space, config: Config) -> Values:
    """Values whose sizes fit one another, as far as their ranges allow.

    Args:
        values: of what is swept, by name.
        space: their ranges.
        config: what isn't swept.
    """
    fitted = dict(values)
    ranges = {p.name: p for p in space.parameters}

    def moved(name: str, factor: float) -> bool:
        if name not in fitted:
            return False
        value = ranges[name].to_value(ranges[name].to_unit(fitted[name] * factor))
        changed = value > fitted[name] if factor > 1 else value < fitted[name]
        fitted[name] = value if changed else fitted[name]
        return changed

    plain = {
        AGENTS: config.vec.total_agents,
        HORIZON: config.train.horizon,
        MINIBATCH: config.train.minibatch_size,
        REPLAY: config.train.replay_ratio,
        COST: config.train.total_timesteps,
    }
    while ways := [way for misfit, ways in MOVES if misfit({**plain, **fitted}) for way in ways]:
        if not any(moved(*way) for way in ways):
            break
    return fitted
