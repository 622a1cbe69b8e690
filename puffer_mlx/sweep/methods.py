"""Choose the values of a sweep's next run: the methods Random, ParetoGenetic and Protein.

A suggestion depends only on the method's seed, the suggestion's number and the observations in
their order. So a resumed sweep makes the same suggestions, and several processes with the same
observations can each make suggestions with different numbers.

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
from puffer_mlx.sweep.observations import Front, Observations, pareto_front, prune_front
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import Space

MUTATION_RATE = 0.5  # average fraction of a vector's coordinates that ParetoGenetic changes
FIRST_COST = -0.8  # mean coordinate of the first runs' length
COST_NOISE = 0.1  # standard deviation of the first runs' coordinate and of target costs
TARGET_COSTS = (0.16, 0.32, 0.48, 0.64, 0.8, 1.0)  # fractions of the range of log costs
TARGET_COST_FACTOR = 1.1  # target costs are a little above the known costs
SHORTENINGS = (1 / 2, 1 / 3)  # fractions of the way from a best run to the shortest run
OUTLIER_DEVIATIONS = 6.0  # standard deviations above the median
DEVIATION_PER_DISTANCE = 1.4826  # standard deviation per median distance, of a normal distribution
CHANGE_PROBABILITIES = (1.0, 0.5, 0.2)  # probabilities that a candidate's coordinate changes
BOX_SIZES = (1.0, 0.5, 0.25)  # fractions of the scales, for the box of candidates
COST_PERCENTILE = 97  # percentile of log costs that is scaled to 1
MAX_FITTED_FAILURES = 100  # with fewer successes, the newest failures count as the worst score
MIN_CLASSIFIED = 9  # with more successes and failures, failures are predicted
TOP_CANDIDATES = 100  # candidates with the largest summed ratings, among which one is chosen
BATCH_SIZE = 4096  # candidates per evaluation of a model


class Method:
    """Base class of the search methods, which suggest vectors of parameters from observations.

    Args:
        space: Space that is searched.
        settings: Settings of the sweep.
        seed: Seed of all random numbers.

    Attributes:
        observations: Results of the runs so far.
    """

    def __init__(self, space: Space, settings: SweepSettings, seed: int) -> None:
        self.space = space
        self.settings = settings
        self.seed = seed
        self.observations = Observations(settings)
        self._next = 0

    def observe(self, vector: np.ndarray, score: float, cost: float, failed: bool = False) -> None:
        """Add a run's score and cost at one point of its curve to the search's observations."""
        self.observations.add(vector, score, cost, failed)

    def suggest(self, number: int | None = None) -> np.ndarray:
        """Suggest the values of the next run. Returns their vector after rounding, (d,).

        Args:
            number: Number of the suggestion, from 0; None for the next one.
        """
        number = self._next if number is None else number
        self._next = number + 1
        vector = self.choose(number, np.random.default_rng([self.seed, number]))
        return self.space.round_vectors(vector[None])[0]

    def front(self) -> Front:
        """Return the Pareto front of observed scores and costs, pruned if ``prune_pareto``."""
        front = pareto_front(self.observations.scores, self.observations.costs)
        return prune_front(front) if self.settings.prune_pareto else front

    def choose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Choose the vector of parameters for a new run, (d,), which ``suggest`` rounds."""
        raise NotImplementedError


class Random(Method):
    """Random search: every suggestion is a uniformly distributed vector of parameters.

    The lengths of runs are also random.
    """

    def choose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Return a uniformly distributed vector of parameters for a new run, (d,)."""
        return rng.uniform(-1, 1, len(self.space))


class ParetoGenetic(Method):
    """Genetic search: mutate a random point of the Pareto front.

    A mutation changes half of the coordinates within their search boxes. Each point of the front
    has the same probability. Without observations, the configured values are mutated.
    """

    def choose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Return a new run's vector (d,): a mutation of a random point of the Pareto front."""
        parents = self.space.default[None]
        if len(self.observations):
            parents = self.observations.vectors[self.front().indices]
        parent = parents[rng.integers(len(parents))]
        return self.space.sample_around(parent[None], rng, probability=MUTATION_RATE)[0]


class Models(NamedTuple):
    """Fitted models that predict the score and the cost of a run.

    Args:
        score: Model of scores, scaled from 0 (worst) to 1 (best).
        cost: Model of log costs, scaled from 0 (least) to 1 (percentile ``COST_PERCENTILE``).
        min_log_cost: Log cost that is scaled to 0.
        log_cost_range: Difference between the log costs that are scaled to 1 and to 0.
    """

    score: Posterior
    cost: Posterior
    min_log_cost: float
    log_cost_range: float


class Protein(Method):
    """Model-based search: suggest the candidate near the Pareto front with the best predictions."""

    def choose(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Choose a new run's vector (d,): a Sobol point at first, later the best candidate.

        If the best score is an outlier, candidates are close to the best points, and the target
        cost is a little above the known costs: such a search gains most near the outlier.
        """
        if number < self.settings.num_random_samples or len(self.observations) < 2:
            return self._from_sobol(number, rng)
        local = self.best_is_outlier()
        candidates = _distinct(self.space.round_vectors(self.candidates(rng, local)))
        ratings = self.ratings(self.models(rng), candidates, self._target_cost(number, local, rng))
        return candidates[rng.choice(_undominated(ratings))]

    def best_is_outlier(self) -> bool:
        """Return True if the best score of the observations is an outlier.

        An outlier is more than ``OUTLIER_DEVIATIONS`` standard deviations above the median. The
        standard deviation is estimated from the median distance to the median.
        """
        above = self.observations.scores - np.median(self.observations.scores)
        return bool(
            above.max() > OUTLIER_DEVIATIONS * DEVIATION_PER_DISTANCE * np.median(np.abs(above))
        )

    def _from_sobol(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Return an initial suggestion: a point of the Sobol sequence, usually with a short run."""
        points = sobol(number + 1, len(self.space), np.random.default_rng(self.seed))
        vector = 2 * points[-1] - 1
        if self.space.timesteps_index is not None:
            vector[self.space.timesteps_index] = FIRST_COST + COST_NOISE * rng.standard_normal()
        return np.clip(vector, -1, 1)

    def _target_cost(self, number: int, local: bool, rng: np.random.Generator) -> float | None:
        """Return the training cost that a suggested run should have, or None for a fixed length.

        The cost is scaled as in ``Models``. If ``local`` is set, it is above nearly all known
        costs. Otherwise it cycles through ``TARGET_COSTS`` in random order.
        """
        if self.space.timesteps_index is None:
            return None
        if local:
            return TARGET_COST_FACTOR
        cycle, position = divmod(
            max(0, number - self.settings.num_random_samples), len(TARGET_COSTS)
        )
        order = np.random.default_rng([self.seed, cycle, 1]).permutation(len(TARGET_COSTS))
        target = TARGET_COSTS[order[position]] + COST_NOISE * rng.standard_normal()
        return TARGET_COST_FACTOR * float(np.clip(target, 0, 1))

    def candidates(self, rng: np.random.Generator, local: bool) -> np.ndarray:
        """Return candidates for a new run: random vectors near the best observed ones, (n, d).

        They surround the points of the Pareto front, and shortened versions of the best runs.

        Args:
            rng: Random generator.
            local: Let some candidates change few coordinates, or change them little. Where scores
                are steep, a step in ten coordinates at once is rarely better.
        """
        vectors = self.observations.vectors
        centres = [vectors[self.front().indices]]
        if (cost_index := self.space.timesteps_index) is not None:
            best = np.argsort(-self.observations.scores, kind="stable")
            best = vectors[best[: self.settings.num_keep_top_obs]]
            for fraction in SHORTENINGS:
                shorter = best.copy()
                shorter[:, cost_index] += fraction * (-1 - best[:, cost_index])
                centres.append(shorter)
        repeated = np.repeat(np.concatenate(centres), self.settings.suggestions_per_pareto, axis=0)
        if not local:
            return self.space.sample_around(repeated, rng)
        probability = rng.choice(CHANGE_PROBABILITIES, (len(repeated), 1))
        size = rng.choice(BOX_SIZES, (len(repeated), 1))
        return self.space.sample_around(repeated, rng, probability, size)

    def models(self, rng: np.random.Generator) -> Models:
        """Fit Gaussian processes of score and cost to the observations."""
        observations = self.observations
        chosen = self._fit_indices(len(observations), rng)
        vectors = observations.vectors[chosen]
        scores = observations.scores[chosen]
        costs = observations.costs[chosen]
        logs = np.log(costs)
        min_log_cost = float(logs.min())
        log_cost_range = float(np.percentile(logs, COST_PERCENTILE)) - min_log_cost or 1.0
        steps = self.settings.gp_training_iter
        cost = gaussian_process.fit_posterior(
            vectors, (logs - min_log_cost) / log_cost_range, steps
        )
        if len(scores) < MAX_FITTED_FAILURES and len(observations.failures):
            vectors = np.concatenate([vectors, observations.failures[-MAX_FITTED_FAILURES:]])
            worst = np.full(len(vectors) - len(scores), scores.min())
            scores = np.concatenate([scores, worst])
        low = scores.min()
        width = np.ptp(scores) or 1.0
        score = gaussian_process.fit_posterior(vectors, (scores - low) / width, steps)
        return Models(score, cost, min_log_cost, log_cost_range)

    def _fit_indices(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return the indices of the observations to which models are fitted.

        If there are more than ``gp_max_obs``, half of them are the newest and half are random older
        ones.
        """
        max_fitted = self.settings.gp_max_obs
        if count <= max_fitted:
            return np.arange(count)
        newest = np.arange(count - max_fitted // 2, count)
        older = rng.choice(count - len(newest), max_fitted - len(newest), replace=False)
        return np.concatenate([np.sort(older), newest])

    def ratings(self, models: Models, candidates: np.ndarray, target: float | None) -> np.ndarray:
        """Rate candidates by three criteria, (n, 3); -inf if the expected cost is too high.

        The criteria are the expected improvement over the best score, the probability of an
        improvement, and the expected score plus ``exploration`` standard deviations. If all
        candidates are too expensive, the cheapest one is rated best.
        """
        means = _in_batches(models.score.means, candidates)
        deviations = _in_batches(models.score.deviations, candidates) + 1e-9
        above = (means - 1) / deviations  # 1 is the best observed score
        probabilities = 0.5 * (1 + _erf(above / math.sqrt(2)))
        density = np.exp(-0.5 * above**2) / math.sqrt(2 * math.pi)
        optimistic = means + self.settings.exploration * deviations
        ratings = np.stack(
            [
                deviations * (above * probabilities + density),
                probabilities,
                np.maximum(optimistic, 0.0) + 1e-6 * optimistic,
            ],
            axis=1,
        )
        costs = _in_batches(models.cost.means, candidates)
        if target is not None:
            ratings = ratings * np.maximum(1 - np.abs(target - costs), 0.0)[:, None]
        ratings = ratings * self._success_probabilities(candidates)[:, None]
        max_cost = (
            math.log(self.settings.max_suggestion_cost) - models.min_log_cost
        ) / models.log_cost_range
        too_expensive = (costs >= max_cost)[:, None]
        return (
            np.where(too_expensive, -np.inf, ratings)
            if not too_expensive.all()
            else np.tile(-costs, (3, 1)).T
        )

    def _success_probabilities(self, candidates: np.ndarray) -> np.ndarray:
        """Return each candidate's probability that its run doesn't fail, (n,).

        With few observations, all are 1.
        """
        observations = self.observations
        if len(observations) <= MIN_CLASSIFIED or len(observations.failures) <= MIN_CLASSIFIED:
            return np.ones(len(candidates))
        weights = _fit_logistic(observations.vectors, observations.failures)
        return 1 / (1 + np.exp(-np.clip(candidates @ weights[:-1] + weights[-1], -30, 30)))


def _in_batches(function, vectors: np.ndarray) -> np.ndarray:
    return np.concatenate(
        [function(vectors[i : i + BATCH_SIZE]) for i in range(0, len(vectors), BATCH_SIZE)]
    )


_erf = np.vectorize(math.erf, otypes=[float])


def _undominated(ratings: np.ndarray) -> np.ndarray:
    """Choose the best candidates of a search by three ratings, (n, 3). Returns their indices.

    These are the Pareto-optimal ones among the ``TOP_CANDIDATES`` with the largest sums. Source:
    the acquisition of HEBO (Cowen-Rivers et al., 2022), an ensemble of three.
    """
    leading = np.argsort(-ratings.sum(1), kind="stable")[:TOP_CANDIDATES]
    leading = leading[np.isfinite(ratings[leading, 0])]
    chosen = ratings[leading]
    at_least = (chosen[:, None] >= chosen[None]).all(2)
    more = (chosen[:, None] > chosen[None]).any(2)
    return leading[~(at_least & more).any(0)]


def _distinct(vectors: np.ndarray) -> np.ndarray:
    """Remove repeated rows of an array of vectors, without changing the order of the others."""
    _, first = np.unique(np.round(vectors, 6), axis=0, return_index=True)
    return vectors[np.sort(first)]


def _fit_logistic(
    successes: np.ndarray, failures: np.ndarray, ridge: float = 1.0, steps: int = 20
) -> np.ndarray:
    """Fit a logistic regression by Newton's method. Returns the weights and the constant, (d + 1,).

    Both classes have the same total weight.

    Args:
        successes: Vectors of successful runs, (n, d).
        failures: Vectors of failed runs, (m, d).
        ridge: Penalty of the squared weights, the constant included.
        steps: Number of Newton steps.
    """
    rows = np.concatenate([successes, failures])
    rows = np.column_stack([rows, np.ones(len(rows))])
    labels = np.concatenate([np.ones(len(successes)), np.zeros(len(failures))])
    class_weights = len(rows) / 2 * np.where(labels == 1, 1 / len(successes), 1 / len(failures))
    weights = np.zeros(rows.shape[1])
    for _ in range(steps):
        probabilities = 1 / (1 + np.exp(-np.clip(rows @ weights, -30, 30)))
        gradient = rows.T @ (class_weights * (labels - probabilities)) - ridge * weights
        hessian = (rows * (class_weights * probabilities * (1 - probabilities))[:, None]).T @ rows
        weights = weights + np.linalg.solve(hessian + ridge * np.eye(len(weights)), gradient)
    return weights


def make_method(space: Space, settings: SweepSettings, seed: int) -> Method:
    """Create the search method that ``settings`` name, one of ``BUILT_IN_METHODS``."""
    methods = {"Protein": Protein, "ParetoGenetic": ParetoGenetic, "Random": Random}
    return methods[settings.method](space, settings, seed)


# ---- Sobol's sequence ----------------------------------------------------------------------------

BITS = 30


def sobol(points: int, dimensions: int, rng: np.random.Generator) -> np.ndarray:
    """Return the first points of a scrambled Sobol sequence, (points, dimensions) in [0, 1)."""
    columns = _direction_numbers(dimensions, rng)  # (dimensions, BITS)
    columns = _scrambled(columns, rng)
    shifts = rng.integers(0, 1 << BITS, dimensions)
    gray = np.arange(points) ^ (np.arange(points) >> 1)
    values = np.tile(shifts, (points, 1))  # (points, dimensions)
    for bit in range(BITS):
        chosen = (gray >> bit & 1).astype(bool)
        values[chosen] ^= columns[:, bit]
    return values / (1 << BITS)


def _direction_numbers(dimensions: int, rng: np.random.Generator) -> np.ndarray:
    """Return the direction numbers of a Sobol sequence, (dimensions, BITS) int64.

    The highest bit of a dimension's k-th direction number is bit ``BITS - 1 - k``.
    """
    directions = np.empty((dimensions, BITS), np.int64)
    polynomials = islice(_primitive_polynomials(), max(0, dimensions - 1))
    directions[:1] = 1 << (BITS - 1 - np.arange(BITS))  # the van der Corput sequence
    for row, polynomial in enumerate(polynomials, 1):
        degree = polynomial.bit_length() - 1
        # Number k is odd and below 2^(k + 1).
        row_numbers = [2 * int(rng.integers(1 << k)) + 1 for k in range(degree)]
        for k in range(degree, BITS):
            new = row_numbers[k - degree] ^ (row_numbers[k - degree] << degree)
            for j in range(1, degree):
                if polynomial >> (degree - j) & 1:
                    new ^= row_numbers[k - j] << j
            row_numbers.append(new)
        directions[row] = [row_numbers[k] << (BITS - 1 - k) for k in range(BITS)]
    return directions


def _primitive_polynomials() -> Iterator[int]:
    """Yield the primitive polynomials over GF(2) from x + 1 on, with their coefficients as bits."""
    for degree in count(1):
        for polynomial in range((1 << degree) + 1, 2 << degree, 2):
            power = 1
            order = 0
            while power != 1 or not order:  # the powers of x, modulo the polynomial
                power <<= 1
                power ^= polynomial * (power >> degree)
                order += 1
            if order == (1 << degree) - 1:
                yield polynomial


def _scrambled(columns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Scramble direction numbers: multiply them by random lower triangular matrices of bits.

    The matrices have a diagonal of ones. Bit i of a result, counted from the highest, is the parity
    of bit i and a random choice of the bits above it.
    """
    dimensions = len(columns)
    result = np.zeros_like(columns)
    for i in range(BITS):
        position = BITS - 1 - i
        above = rng.integers(0, 1 << i, dimensions) << (position + 1)  # i bits, all above bit i
        bits = columns & (above | 1 << position)[:, None]
        result |= (np.bitwise_count(bits).astype(np.int64) & 1) << position
    return result
