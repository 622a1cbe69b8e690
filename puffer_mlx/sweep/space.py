r"""The searched space: parameters with ranges, each mapped to a coordinate from -1 to 1.

A distribution defines a scale on which the coordinate is linear:

| distribution | position of a value v on the scale | rounded |
| --- | --- | --- |
| uniform | v | |
| int_uniform | v | v |
| uniform_pow2 | log2 v | log2 v |
| log_normal | log10 v | |
| logit_normal | -log10(1 - v) | |

Values of integer keys are always rounded, and methods learn from the rounded values. (PufferLib's
trainer truncates them, but its search method learns from the fractions that it suggested.)

Source: PufferLib 4.0's parameter spaces.

Methods choose each value independently, so their first suggestions are often inconsistent: a
minibatch larger than an epoch, or training shorter than one. ``fit_sizes`` adjusts the swept values
within their ranges, as ``config/fit.py`` adjusts the values of files.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from puffer_mlx.config import Config

TIMESTEPS = "train.total_timesteps"  # the length of a run
AUTO_SCALE = 0.5


class Distribution(NamedTuple):
    """Distribution of a parameter's values: a scale on which the coordinate is linear.

    Args:
        to_position: Maps an array of values to their positions on the scale; increasing.
        from_position: Maps an array of positions to their values.
        lower_bound: Exclusive lower bound of legal values.
        upper_bound: Exclusive upper bound of legal values.
        rounds_positions: True if positions are integers.
        rounds_values: True if values are integers.
    """

    to_position: Callable[[np.ndarray], np.ndarray]
    from_position: Callable[[np.ndarray], np.ndarray]
    lower_bound: float = -math.inf
    upper_bound: float = math.inf
    rounds_positions: bool = False
    rounds_values: bool = False


DISTRIBUTIONS = {
    "uniform": Distribution(lambda v: v, lambda p: p),
    "int_uniform": Distribution(lambda v: v, lambda p: p, rounds_values=True),
    "uniform_pow2": Distribution(np.log2, np.exp2, lower_bound=0.0, rounds_positions=True),
    "log_normal": Distribution(np.log10, lambda p: 10.0**p, lower_bound=0.0),
    "logit_normal": Distribution(
        lambda v: -np.log10(1 - v), lambda p: 1 - 10.0**-p, upper_bound=1.0
    ),
}


@dataclass(frozen=True)
class Parameter:
    """A configuration key that a sweep searches, with its range.

    Args:
        section: Section of the key without ``sweep.``, for example ``train``.
        key: Name of the key, for example ``learning_rate``.
        distribution: Name in ``DISTRIBUTIONS``.
        low: Smallest value of the range.
        high: Largest value of the range.
        scale: Half the width of the search box around a good value, as a difference of coordinates;
            2 covers the entire range.
        integer: True if values are integers.
        default: Configured value; None without one.
    """

    section: str
    key: str
    distribution: str
    low: float
    high: float
    scale: float = AUTO_SCALE
    integer: bool = False
    default: float | None = None

    @property
    def name(self) -> str:
        """Full name of the searched key, for example ``train.learning_rate``."""
        return f"{self.section}.{self.key}"

    @property
    def recorded_default(self) -> float | None:
        """The configured value as recorded in a trial, or None.

        Optuna can't take the logarithm of 0. On a log scale, a configured 0 is recorded as the
        nearer end of the range, like its coordinate (``to_coordinate``).
        """
        if self.default is None or self._distribution.lower_bound < self.default:
            return self.default
        return self.to_value(self.to_coordinate(self.default))

    @property
    def _distribution(self) -> Distribution:
        return DISTRIBUTIONS[self.distribution]

    @cached_property
    def _ends(self) -> tuple[float, float]:
        """Positions of the ends of the parameter's range on its distribution's scale."""
        low, high = self._distribution.to_position(np.array([self.low, self.high], float))
        return float(low), float(high)

    def to_coordinate(self, value: float) -> float:
        """Return the coordinate of a parameter's value: -1 at ``low``, 1 at ``high``, else linear.

        A value that is illegal in the distribution, such as 0 on a log scale, has the coordinate of
        the nearer end.
        """
        distribution = self._distribution
        first, last = self._ends
        if not distribution.lower_bound < value < distribution.upper_bound:
            return -1.0 if value <= distribution.lower_bound else 1.0
        position = float(distribution.to_position(np.array(value, float)))
        return 2 * (position - first) / (last - first) - 1

    def to_value(self, coordinate: float) -> int | float:
        """Return the parameter's value at a coordinate, which is clipped to -1 to 1."""
        value = float(self.to_values(np.array([coordinate], float))[0])
        return int(value) if self.integer else value

    def to_values(self, coordinates: np.ndarray) -> np.ndarray:
        """Return the parameter's values at coordinates, (n,) float64, rounded for integer keys."""
        distribution = self._distribution
        first, last = self._ends
        positions = first + (np.clip(coordinates, -1, 1) + 1) / 2 * (last - first)
        if distribution.rounds_positions:
            positions = np.clip(np.rint(positions), math.ceil(first), math.floor(last))
        values = np.clip(distribution.from_position(positions), self.low, self.high)
        if self.integer or distribution.rounds_values:
            values = np.clip(np.rint(values), math.ceil(self.low), math.floor(self.high))
        return values

    def to_coordinates(self, values: np.ndarray) -> np.ndarray:
        """Return the coordinates of legal values of the parameter, (n,) float64."""
        first, last = self._ends
        return 2 * (self._distribution.to_position(values) - first) / (last - first) - 1


class Space:
    """Space that a sweep searches: its parameters, in the order of a vector's coordinates.

    Args:
        parameters: The d parameters.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        self.names = tuple(parameter.name for parameter in self.parameters)
        self.scales = np.array([parameter.scale for parameter in self.parameters])  # (d,)

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def timesteps_index(self) -> int | None:
        """Index of the run length among the coordinates, or None if the length is fixed."""
        return self.names.index(TIMESTEPS) if TIMESTEPS in self.names else None

    @property
    def default(self) -> np.ndarray:
        """Coordinates of the configured values of all parameters, (d,); 0 for a missing value."""
        defaults = ((p, p.default) for p in self.parameters)
        return np.array([0.0 if value is None else p.to_coordinate(value) for p, value in defaults])

    def to_coordinate(self, values: Mapping[str, float]) -> np.ndarray:
        """Return the vector of coordinates, (d,), from the values of all keys by full name."""
        return np.array([p.to_coordinate(values[p.name]) for p in self.parameters])

    def to_values(self, vector: np.ndarray) -> dict[str, int | float]:
        """Return the values of all keys by full name from a vector of coordinates (d,)."""
        pairs = zip(self.parameters, vector, strict=True)
        return {parameter.name: parameter.to_value(coordinate) for parameter, coordinate in pairs}

    def round_vectors(self, vectors: np.ndarray) -> np.ndarray:
        """Round the values of parameter vectors (n, d) to those that runs can use.

        Returns the vectors of the rounded values.
        """
        columns = [
            parameter.to_coordinates(parameter.to_values(column))
            for parameter, column in zip(self.parameters, vectors.T, strict=True)
        ]
        return np.stack(columns, axis=1)

    def sample_around(
        self,
        centres: np.ndarray,
        rng: np.random.Generator,
        probability: float | np.ndarray | None = None,
        size: float | np.ndarray = 1.0,
    ) -> np.ndarray:
        """Return a random vector from the search box around each centre, (n, d), within the space.

        Args:
            centres: Centres of the boxes, (n, d).
            rng: Random generator.
            probability: Probability that a coordinate changes, a number or (n, 1). At least one
                coordinate changes. None changes all.
            size: Size of the box as a fraction of the scales, a number or (n, 1).
        """
        steps = rng.uniform(-1, 1, centres.shape) * self.scales * size
        if probability is not None:
            chosen = rng.random(centres.shape) < probability
            chosen[np.arange(len(chosen)), rng.integers(len(self), size=len(chosen))] = True
            steps = steps * chosen
        return np.clip(np.clip(centres, -1, 1) + steps, -1, 1)


# ---- consistent sizes ----------------------------------------------------------------------------

Values = dict[str, int | float]
AGENTS = "vec.total_agents"
HORIZON = "train.horizon"
MINIBATCH = "train.minibatch_size"
REPLAY = "train.replay_ratio"


class Repair(NamedTuple):
    """Test for inconsistent sizes of a training run, and changes that may repair them.

    Args:
        is_inconsistent: Tests all sizes, by key.
        changes: Keys, each with the factor for its value. The first key that is swept and not at
            the end of its range is changed.
    """

    is_inconsistent: Callable[[Mapping[str, float]], bool]
    changes: tuple[tuple[str, float], ...]


# Over all repairs, each key only grows or only shrinks, so that repairing ends.
REPAIRS = (
    Repair(
        lambda size: size[MINIBATCH] > size[AGENTS] * size[HORIZON],
        ((MINIBATCH, 1 / 2), (HORIZON, 2), (AGENTS, 2)),
    ),
    Repair(
        lambda size: size[REPLAY] * size[AGENTS] * size[HORIZON] < size[MINIBATCH],
        ((MINIBATCH, 1 / 2), (REPLAY, 5 / 4), (HORIZON, 2), (AGENTS, 2)),
    ),
    Repair(lambda size: size[TIMESTEPS] < size[AGENTS] * size[HORIZON], ((TIMESTEPS, 5 / 4),)),
)


def fit_sizes(values: Values, space: Space, config: Config) -> Values:
    """Adjust swept sizes until they are consistent, as far as their ranges allow.

    Args:
        values: Swept values by full name.
        space: Ranges of the values.
        config: Configuration with the other values.

    Returns:
        The adjusted values by full name.
    """
    fitted = dict(values)
    ranges = {p.name: p for p in space.parameters}

    def change(name: str, factor: float) -> bool:
        """Multiply a swept value by a factor, within its range. Returns True if it changed."""
        if name not in fitted:
            return False
        value = ranges[name].to_value(ranges[name].to_coordinate(fitted[name] * factor))
        changed = value > fitted[name] if factor > 1 else value < fitted[name]
        fitted[name] = value if changed else fitted[name]
        return changed

    configured = {
        AGENTS: config.vec.total_agents,
        HORIZON: config.train.horizon,
        MINIBATCH: config.train.minibatch_size,
        REPLAY: config.train.replay_ratio,
        TIMESTEPS: config.train.total_timesteps,
    }
    while True:
        sizes = {**configured, **fitted}
        changes = [
            each for repair in REPAIRS if repair.is_inconsistent(sizes) for each in repair.changes
        ]
        if not any(change(name, factor) for name, factor in changes):  # stops at the first change
            return fitted
