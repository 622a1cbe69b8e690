"""Methods that choose a sweep's next run: Random, ParetoGenetic and Protein.

A suggestion depends only on the method's seed, the suggestion's number and the observations in
their order. So a resumed sweep makes the same suggestions, and several processes with the same
observations can each suggest different numbers.

Protein models score and cost as functions of the parameters with Gaussian processes. Source:
PufferLib 4.0's Protein, by its description. docs/decisions/0024-protein.md lists the differences
and their reasons.

The first suggestions are points of a scrambled Sobol sequence, which fills a cube more evenly than
independent points. Sources: Sobol (1967); Bratley and Fox (1988), algorithm 659: direction numbers
from primitive polynomials over GF(2). Matousek (1998): scrambling by a random lower triangular
matrix and a random shift. The first direction numbers are random, like the scrambling.
"""

import math
from collections.abc import Iterator
from itertools import count, islice
from typing import NamedTuple

import numpy as np

from puffer_mlx.sweep import gaussian_process
from puffer_mlx.sweep.gaussian_process import Posterior
from puffer_mlx.sweep.observations import Front, Observations, pareto_front, pruned
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import Space

MUTATED = 0.5  # average fraction of a vector's coordinates (ParetoGenetic)
FIRST_COST, COST_NOISE = -0.8, 0.1  # mean and deviation of the first runs' cost coordinate
TARGETS = (0.16, 0.32, 0.48, 0.64, 0.8, 1.0)  # target costs, as fractions of the range of log costs
BEYOND = 1.1  # factor of the target cost: a little above the known costs
SHORTER = (1 / 2, 1 / 3)  # fractions of the way from the best runs to the shortest run
OUTLYING, NORMAL = 6.0, 1.4826  # deviations of an outlier; deviation per median distance
MOVED = (1.0, 0.5, 0.2)  # probabilities that a candidate's coordinate changes
SIZES = (1.0, 0.5, 0.25)  # fractions of the scales, for the box of candidates
DEAREST = 97  # percentile of log costs that is scaled to 1
FEW = 100  # with fewer successes, failures count as the worst score
ENOUGH = 9  # with more successes and failures, failures are predicted
LEADING = 100  # candidates with the largest summed ratings, among which one is chosen
BATCH = 4096  # candidates per evaluation of a model


class Method:
    """Base class of methods that suggest vectors from observations.

    Args:
        space: Space that is searched.
        settings: Settings of the sweep.
        seed: Seed of all random numbers.

    Attributes:
        observations: Observations so far.
    """

    def __init__(self, space: Space, settings: SweepSettings, seed: int) -> None:
        self.space = space
        self.settings = settings
        self.seed = seed
        self.observations = Observations(settings)
        self._next = 0

    def observe(self, vector: np.ndarray, score: float, cost: float, failed: bool = False) -> None:
        """Add a point of a run; see ``Observations.add``."""
        self.observations.add(vector, score, cost, failed)

    def suggest(self, number: int | None = None) -> np.ndarray:
        """Return the vector of the next run, (d,), after rounding.

        Args:
            number: Number of the suggestion, from 0; None for the next one.
        """
        number = self._next if number is None else number
        self._next = number + 1
        vector = self.choose(number, np.random.default_rng([self.seed, number]))
        return self.space.as_run(vector[None])[0]

    def front(self) -> Front:
        """Return the Pareto front, pruned if ``prune_pareto`` is set."""
        front = pareto_front(self.observations.scores, self.observations.costs)
        return pruned(front) if self.settings.prune_pareto else front

    def choose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Return the suggestion before rounding, (d,)."""
        raise NotImplementedError


class Random(Method):
    """Suggest uniformly distributed vectors, lengths of runs included."""

    def choose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Return a uniformly distributed vector, (d,)."""
        return rng.uniform(-1, 1, len(self.space))


class ParetoGenetic(Method):
    """Change half of the coordinates of a random point of the Pareto front, within their boxes.

    Each point of the front has the same probability. Without observations, the parent is the vector
    of the configured values.
    """

    def choose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Return a mutation of a point of the front, (d,)."""
        parents = self.space.default[None]
        if len(self.observations):
            parents = self.observations.vectors[self.front().at]
        parent = parents[rng.integers(len(parents))]
        return self.space.around(parent[None], rng, moved=MUTATED)[0]


class Models(NamedTuple):
    """Models of score and cost.

    Args:
        score: Model of scores, scaled from 0 (worst) to 1 (best).
        cost: Model of log costs, scaled from 0 (least) to 1 (percentile ``DEAREST``).
        least: Logarithm of the least cost.
        span: Difference of log costs between 0 and 1.
    """

    score: Posterior
    cost: Posterior
    least: float
    span: float


class Protein(Method):
    """Suggest the candidate near the front that models of score and cost rate best."""

    def choose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Return a point of Sobol's sequence at first, later the best candidate, (d,).

        If the best score is an outlier, candidates are close to the best points, and the target
        cost is a little above the known ones: such a search gains most from what it already found.
        """
        if number < self.settings.num_random_samples or len(self.observations) < 2:
            return self._from_sobol(number, rng)
        near = self.best_is_outlier()
        candidates = _distinct(self.space.as_run(self.candidates(rng, near)))
        ratings = self.ratings(self.models(rng), candidates, self._target(number, near, rng))
        return candidates[rng.choice(_undominated(ratings))]

    def best_is_outlier(self) -> bool:
        """Return True if the best score is an outlier.

        An outlier is more than ``OUTLYING`` deviations above the median. The deviation is estimated
        from the median distance to the median.
        """
        above = self.observations.scores - np.median(self.observations.scores)
        return bool(above.max() > OUTLYING * NORMAL * np.median(np.abs(above)))

    def _from_sobol(self, number: int, rng: np.random.Generator) -> np.ndarray:
        points = sobol(number + 1, len(self.space), np.random.default_rng(self.seed))
        vector = 2 * points[-1] - 1
        if self.space.cost is not None:
            vector[self.space.cost] = FIRST_COST + COST_NOISE * rng.standard_normal()
        return np.clip(vector, -1, 1)

    def _target(self, number: int, near: bool, rng: np.random.Generator) -> float | None:
        """Return the target cost, scaled as in ``Models``, or None for runs of one length.

        If ``near`` is set, the target is above nearly all known costs. Otherwise it cycles through
        ``TARGETS`` in random order.
        """
        if self.space.cost is None:
            return None
        if near:
            return BEYOND
        cycle, at = divmod(max(0, number - self.settings.num_random_samples), len(TARGETS))
        order = np.random.default_rng([self.seed, cycle, 1]).permutation(len(TARGETS))
        part = TARGETS[order[at]] + COST_NOISE * rng.standard_normal()
        return BEYOND * float(np.clip(part, 0, 1))

    def candidates(self, rng: np.random.Generator, near: bool) -> np.ndarray:
        """Return candidates around the front and around cheaper forms of the best runs, (n, d).

        Args:
            rng: Random generator.
            near: Let some candidates change few coordinates, or by little. Where scores are steep,
                a step in ten coordinates at once is rarely better.
        """
        vectors = self.observations.vectors
        centres = [vectors[self.front().at]]
        if (at := self.space.cost) is not None:
            best = np.argsort(-self.observations.scores, kind="stable")
            best = vectors[best[: self.settings.num_keep_top_obs]]
            for part in SHORTER:
                shorter = best.copy()
                shorter[:, at] += part * (-1 - best[:, at])
                centres.append(shorter)
        around = np.repeat(np.concatenate(centres), self.settings.suggestions_per_pareto, axis=0)
        if not near:
            return self.space.around(around, rng)
        moved, size = (rng.choice(parts, (len(around), 1)) for parts in (MOVED, SIZES))
        return self.space.around(around, rng, moved, size)

    def models(self, rng: np.random.Generator) -> Models:
        """Return Gaussian processes of score and cost, fitted to the observations."""
        seen = self.observations
        chosen = self._chosen(len(seen), rng)
        vectors = seen.vectors[chosen]
        scores = seen.scores[chosen]
        costs = seen.costs[chosen]
        logs = np.log(costs)
        least = float(logs.min())
        span = float(np.percentile(logs, DEAREST)) - least or 1.0
        steps = self.settings.gp_training_iter
        cost = gaussian_process.fit(vectors, (logs - least) / span, steps)
        if len(scores) < FEW and len(seen.failures):
            vectors = np.concatenate([vectors, seen.failures[-FEW:]])
            worst = np.full(len(vectors) - len(scores), scores.min())
            scores = np.concatenate([scores, worst])
        low = scores.min()
        width = np.ptp(scores) or 1.0
        score = gaussian_process.fit(vectors, (scores - low) / width, steps)
        return Models(score, cost, least, span)

    def _chosen(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return indices of the observations to fit.

        If there are too many, these are the newest and random older ones, one half each.
        """
        most = self.settings.gp_max_obs
        if count <= most:
            return np.arange(count)
        newest = np.arange(count - most // 2, count)
        older = rng.choice(count - len(newest), most - len(newest), replace=False)
        return np.concatenate([np.sort(older), newest])

    def ratings(self, models: Models, candidates: np.ndarray, target: float | None) -> np.ndarray:
        """Return three ratings per candidate, (n, 3); -inf if the expected cost is too high.

        The ratings are the expected improvement over the best score, the probability of an
        improvement, and the expected score plus ``exploration`` deviations. If all candidates are
        too expensive, the cheapest has the best rating.
        """
        means = _in_batches(models.score.means, candidates)
        deviations = _in_batches(models.score.deviations, candidates) + 1e-9
        above = (means - 1) / deviations  # 1 is the best known score
        chances = 0.5 * (1 + _erf(above / math.sqrt(2)))
        density = np.exp(-0.5 * above**2) / math.sqrt(2 * math.pi)
        optimistic = means + self.settings.exploration * deviations
        ratings = np.stack(
            [
                deviations * (above * chances + density),
                chances,
                np.maximum(optimistic, 0.0) + 1e-6 * optimistic,
            ],
            axis=1,
        )
        costs = _in_batches(models.cost.means, candidates)
        if target is not None:
            ratings = ratings * np.maximum(1 - np.abs(target - costs), 0.0)[:, None]
        ratings = ratings * self._chances(candidates)[:, None]
        most = (math.log(self.settings.max_suggestion_cost) - models.least) / models.span
        dear = (costs >= most)[:, None]
        return np.where(dear, -np.inf, ratings) if not dear.all() else np.tile(-costs, (3, 1)).T

    def _chances(self, candidates: np.ndarray) -> np.ndarray:
        """Return each candidate's probability of success, (n,); 1 with few observations."""
        seen = self.observations
        if len(seen) <= ENOUGH or len(seen.failures) <= ENOUGH:
            return np.ones(len(candidates))
        weights = _logistic(seen.vectors, seen.failures)
        return 1 / (1 + np.exp(-np.clip(candidates @ weights[:-1] + weights[-1], -30, 30)))


def _in_batches(function, vectors: np.ndarray) -> np.ndarray:
    return np.concatenate([function(vectors[i : i + BATCH]) for i in range(0, len(vectors), BATCH)])


_erf = np.vectorize(math.erf, otypes=[float])


def _undominated(ratings: np.ndarray) -> np.ndarray:
    """Return indices of the leading (n, 3) ratings that no other one dominates.

    Leading are those with the largest sums. Source: the acquisition of HEBO (Cowen-Rivers et al.,
    2022), an ensemble of three.
    """
    leading = np.argsort(-ratings.sum(1), kind="stable")[:LEADING]
    leading = leading[np.isfinite(ratings[leading, 0])]
    chosen = ratings[leading]
    at_least = (chosen[:, None] >= chosen[None]).all(2)
    more = (chosen[:, None] > chosen[None]).any(2)
    return leading[~(at_least & more).any(0)]


def _distinct(vectors: np.ndarray) -> np.ndarray:
    """Return the distinct vectors, in their order."""
    _, first = np.unique(np.round(vectors, 6), axis=0, return_index=True)
    return vectors[np.sort(first)]


def _logistic(good: np.ndarray, bad: np.ndarray, ridge: float = 1.0, steps: int = 20) -> np.ndarray:
    """Fit a logistic regression by Newton's method. Returns the weights and the constant, (d + 1,).

    Both classes have the same total weight.

    Args:
        good: Vectors of successes, (n, d).
        bad: Vectors of failures, (m, d).
        ridge: Penalty of the squared weights, the constant included.
        steps: Number of Newton steps.
    """
    rows = np.concatenate([good, bad])
    rows = np.column_stack([rows, np.ones(len(rows))])
    labels = np.concatenate([np.ones(len(good)), np.zeros(len(bad))])
    counts = len(rows) / 2 * np.where(labels == 1, 1 / len(good), 1 / len(bad))
    weights = np.zeros(rows.shape[1])
    for _ in range(steps):
        chances = 1 / (1 + np.exp(-np.clip(rows @ weights, -30, 30)))
        slope = rows.T @ (counts * (labels - chances)) - ridge * weights
        curve = (rows * (counts * chances * (1 - chances))[:, None]).T @ rows
        weights = weights + np.linalg.solve(curve + ridge * np.eye(len(weights)), slope)
    return weights


def make_method(space: Space, settings: SweepSettings, seed: int) -> Method:
    """Return the method named by ``settings``, one of ``OURS``."""
    methods = {"Protein": Protein, "ParetoGenetic": ParetoGenetic, "Random": Random}
    return methods[settings.method](space, settings, seed)


# ---- Sobol's sequence ----------------------------------------------------------------------------

BITS = 30


def sobol(points: int, dimensions: int, rng: np.random.Generator) -> np.ndarray:
    """Return the first points of a scrambled Sobol sequence, (points, dimensions) in [0, 1)."""
    columns = _directions(dimensions, rng)  # (dimensions, BITS)
    columns = _scrambled(columns, rng)
    shifts = rng.integers(0, 1 << BITS, dimensions)
    gray = np.arange(points) ^ (np.arange(points) >> 1)
    numbers = np.tile(shifts, (points, 1))  # (points, dimensions)
    for bit in range(BITS):
        chosen = (gray >> bit & 1).astype(bool)
        numbers[chosen] ^= columns[:, bit]
    return numbers / (1 << BITS)


def _directions(dimensions: int, rng: np.random.Generator) -> np.ndarray:
    """Return direction numbers, (dimensions, BITS) int64; k's highest bit is BITS - 1 - k."""
    directions = np.empty((dimensions, BITS), np.int64)
    polynomials = islice(_primitive(), max(0, dimensions - 1))
    directions[:1] = 1 << (BITS - 1 - np.arange(BITS))  # the van der Corput sequence
    for row, polynomial in enumerate(polynomials, 1):
        degree = polynomial.bit_length() - 1
        numbers = [2 * int(rng.integers(1 << k)) + 1 for k in range(degree)]  # odd, below 2^(k+1)
        for k in range(degree, BITS):
            new = numbers[k - degree] ^ (numbers[k - degree] << degree)
            for j in range(1, degree):
                if polynomial >> (degree - j) & 1:
                    new ^= numbers[k - j] << j
            numbers.append(new)
        directions[row] = [numbers[k] << (BITS - 1 - k) for k in range(BITS)]
    return directions


def _primitive() -> Iterator[int]:
    """Yield primitive polynomials over GF(2) from x + 1 on, with coefficients as bits."""
    for degree in count(1):
        for polynomial in range((1 << degree) + 1, 2 << degree, 2):
            power, order = 1, 0
            while power != 1 or not order:  # the powers of x, modulo the polynomial
                power <<= 1
                power ^= polynomial * (power >> degree)
                order += 1
            if order == (1 << degree) - 1:
                yield polynomial


def _scrambled(columns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Multiply direction numbers by random lower triangular matrices with a diagonal of ones.

    Bit i of a result, counted from the highest, is the parity of bit i and a random choice of the
    bits above it.
    """
    dimensions = len(columns)
    result = np.zeros_like(columns)
    for i in range(BITS):
        place = BITS - 1 - i
        above = rng.integers(0, 1 << i, dimensions) << (place + 1)  # i bits, all above bit i
        bits = columns & (above | 1 << place)[:, None]
        result |= (np.bitwise_count(bits).astype(np.int64) & 1) << place
    return result
