"""What chooses a sweep's next run: Random, ParetoGenetic, and Protein.

A method's suggestion is a function of its seed, the suggestion's number and the observations in
their order, and of nothing else. So a sweep that went down gives the same suggestions when its
observations are told once more and the next number is given; and several processes that read the
same observations may each suggest numbers of their own.

Protein models what a run with other values would score and cost by Gaussian processes. Source:
PufferLib 4.0's Protein, by its description; what is otherwise here, and why, is in
docs/decisions/0024-protein.md.

The first points are of Sobol's sequence, scrambled: they fill a cube more evenly than independent
ones. Sources: Sobol (1967); Bratley and Fox (1988), algorithm 659: direction numbers from primitive
polynomials over GF(2). Matousek (1998): scrambling by a random lower triangular matrix and a random
shift. The first direction numbers are drawn, as the scrambling is.
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

MUTATED = 0.5  # of a vector's coordinates, on average: ParetoGenetic
FIRST_COST, COST_NOISE = -0.8, 0.1  # of the first runs' lengths: mean and deviation of coordinates
TARGETS = (0.16, 0.32, 0.48, 0.64, 0.8, 1.0)  # parts of the logarithm of costs to aim at
BEYOND = 1.1  # times what is aimed at: a little dearer than what is known
SHORTER = (1 / 2, 1 / 3)  # of the way to the shortest run: cheaper forms of the best
OUTLYING, NORMAL = 6.0, 1.4826  # deviations; one of a normal distribution, in median distances
MOVED = (1.0, 0.5, 0.2)  # probabilities that a candidate's coordinate leaves its centre's
SIZES = (1.0, 0.5, 0.25)  # parts of the box that candidates are drawn from
DEAREST = 97  # percentile of costs that counts as 1
FEW = 100  # below so many successes failures count as the worst score
ENOUGH = 9  # more successes and failures than that tell which vectors fail
LEADING = 100  # candidates among which those that no other one is better than are looked for
BATCH = 4096  # candidates at a time


class Method:
    """Suggests vectors by what is known of others.

    Args:
        space: what is searched.
        settings: how.
        seed: of all that is random.

    Attributes:
        observations: what is known.
    """

    def __init__(self, space: Space, settings: SweepSettings, seed: int) -> None:
        self.space, self.settings, self.seed = space, settings, seed
        self.observations = Observations(settings)
        self._next = 0

    def observe(self, vector: np.ndarray, score: float, cost: float, failed: bool = False) -> None:
        """Take one point of a run; see ``Observations.add``."""
        self.observations.add(vector, score, cost, failed)

    def suggest(self, number: int | None = None) -> np.ndarray:
        """The vector, (d,), of the next run, as it is run.

        Args:
            number: of the suggestion, from 0; None: one more than the last.
        """
        number = self._next if number is None else number
        self._next = number + 1
        vector = self.choose(number, np.random.default_rng([self.seed, number]))
        return self.space.as_run(vector[None])[0]

    def front(self) -> Front:
        """The front, pruned if the settings want that."""
        front = pareto_front(self.observations.scores, self.observations.costs)
        return pruned(front) if self.settings.prune_pareto else front

    def choose(self, number: int, draw: np.random.Generator) -> np.ndarray:
        """The suggestion, (d,), before rounding."""
        raise NotImplementedError


class Random(Method):
    """Every vector of the space is as probable as any other, the runs' lengths too."""

    def choose(self, number: int, draw: np.random.Generator) -> np.ndarray:
        """A vector from anywhere."""
        return draw.uniform(-1, 1, len(self.space))


class ParetoGenetic(Method):
    """A point of the Pareto front, half of whose coordinates are moved within their boxes.

    Each point of the front is as probable as any other. Without one it is the configuration's own
    values that are moved.
    """

    def choose(self, number: int, draw: np.random.Generator) -> np.ndarray:
        """A child of a point of the front."""
        parents = self.space.default[None]
        if len(self.observations):
            parents = self.observations.vectors[self.front().at]
        parent = parents[draw.integers(len(parents))]
        return self.space.around(parent[None], draw, moved=MUTATED)[0]


class Models(NamedTuple):
    """What runs would come to.

    Args:
        score: of scores, from 0, the worst seen, to 1, the best.
        cost: of logarithms of costs, from 0, the least seen, to 1, the ``DEAREST``.
        least: the logarithm of the least cost.
        span: from it to the dearest's.
    """

    score: Posterior
    cost: Posterior
    least: float
    span: float


class Protein(Method):
    """Suggests what its models of score and cost rate best among candidates near the front."""

    def choose(self, number: int, draw: np.random.Generator) -> np.ndarray:
        """A point of Sobol's sequence at first, then the best of the candidates.

        Where one score stands out they are near it, and a little dearer than what is known: in few
        runs there is more to gain from what is known to learn than from anywhere else.
        """
        if number < self.settings.num_random_samples or len(self.observations) < 2:
            return self._from_sobol(number, draw)
        near = self.stands_out()
        candidates = _distinct(self.space.as_run(self.candidates(draw, near)))
        ratings = self.ratings(self.models(draw), candidates, self._target(number, near, draw))
        return candidates[draw.choice(_undominated(ratings))]

    def stands_out(self) -> bool:
        """Whether the best score is an outlier: more than ``OUTLYING`` deviations above the median.

        The deviation is estimated by the median distance from it.
        """
        above = self.observations.scores - np.median(self.observations.scores)
        return bool(above.max() > OUTLYING * NORMAL * np.median(np.abs(above)))

    def _from_sobol(self, number: int, draw: np.random.Generator) -> np.ndarray:
        points = sobol(number + 1, len(self.space), np.random.default_rng(self.seed))
        vector = 2 * points[-1] - 1
        if self.space.cost is not None:
            vector[self.space.cost] = FIRST_COST + COST_NOISE * draw.standard_normal()
        return np.clip(vector, -1, 1)

    def _target(self, number: int, near: bool, draw: np.random.Generator) -> float | None:
        """Which part of the known costs to aim at: all if ``near``; None if there is no choice."""
        if self.space.cost is None:
            return None
        if near:
            return BEYOND
        cycle, at = divmod(max(0, number - self.settings.num_random_samples), len(TARGETS))
        order = np.random.default_rng([self.seed, cycle, 1]).permutation(len(TARGETS))
        part = TARGETS[order[at]] + COST_NOISE * draw.standard_normal()
        return BEYOND * float(np.clip(part, 0, 1))

    def candidates(self, draw: np.random.Generator, near: bool) -> np.ndarray:
        """(n, d): vectors around the front, and around cheaper forms of the best observations.

        Args:
            draw: where chance comes from.
            near: some differ from their centre in few coordinates, or by little: where scores are
                steep, a step in ten coordinates at once hardly ever leads to a better one.
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
            return self.space.around(around, draw)
        moved, size = (draw.choice(parts, (len(around), 1)) for parts in (MOVED, SIZES))
        return self.space.around(around, draw, moved, size)

    def models(self, draw: np.random.Generator) -> Models:
        """Gaussian processes of scores and costs, fitted to what is known."""
        seen = self.observations
        chosen = self._chosen(len(seen), draw)
        vectors, scores, costs = seen.vectors[chosen], seen.scores[chosen], seen.costs[chosen]
        logs = np.log(costs)
        least = float(logs.min())
        span = float(np.percentile(logs, DEAREST)) - least or 1.0
        steps = self.settings.gp_training_iter
        cost = gaussian_process.fit(vectors, (logs - least) / span, steps)
        if len(scores) < FEW and len(seen.failures):
            vectors = np.concatenate([vectors, seen.failures[-FEW:]])
            worst = np.full(len(vectors) - len(scores), scores.min())
            scores = np.concatenate([scores, worst])
        low, width = scores.min(), np.ptp(scores) or 1.0
        score = gaussian_process.fit(vectors, (scores - low) / width, steps)
        return Models(score, cost, least, span)

    def _chosen(self, count: int, draw: np.random.Generator) -> np.ndarray:
        """Which observations the models see: of too many the newest half, and some of the rest."""
        most = self.settings.gp_max_obs
        if count <= most:
            return np.arange(count)
        newest = np.arange(count - most // 2, count)
        older = draw.choice(count - len(newest), most - len(newest), replace=False)
        return np.concatenate([np.sort(older), newest])

    def ratings(self, models: Models, candidates: np.ndarray, target: float | None) -> np.ndarray:
        """(n, 3): what each candidate promises; -inf if it is expected to cost too much.

        By its expected improvement over the best score, by its probability to improve on that, and
        by its expected score with a part of its deviation. If all are too dear, the cheapest is
        rated best.
        """
        means = _in_batches(models.score.means, candidates)
        deviations = _in_batches(models.score.deviations, candidates) + 1e-9
        above = (means - 1) / deviations  # 1: the best score that was seen
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
        """(n,): how probably each candidate doesn't fail; 1 while too little is known."""
        seen = self.observations
        if len(seen) <= ENOUGH or len(seen.failures) <= ENOUGH:
            return np.ones(len(candidates))
        weights = _logistic(seen.vectors, seen.failures)
        return 1 / (1 + np.exp(-np.clip(candidates @ weights[:-1] + weights[-1], -30, 30)))


def _in_batches(function, vectors: np.ndarray) -> np.ndarray:
    return np.concatenate([function(vectors[i : i + BATCH]) for i in range(0, len(vectors), BATCH)])


_erf = np.vectorize(math.erf, otypes=[float])


def _undominated(ratings: np.ndarray) -> np.ndarray:
    """Which of (n, 3) ratings no other one beats in all three, among those with the largest sums.

    Source: the acquisition of HEBO (Cowen-Rivers et al., 2022), an ensemble of three.
    """
    leading = np.argsort(-ratings.sum(1), kind="stable")[:LEADING]
    leading = leading[np.isfinite(ratings[leading, 0])]
    chosen = ratings[leading]
    at_least = (chosen[:, None] >= chosen[None]).all(2)
    more = (chosen[:, None] > chosen[None]).any(2)
    return leading[~(at_least & more).any(0)]


def _distinct(vectors: np.ndarray) -> np.ndarray:
    """Vectors without those that are as others, in their order."""
    _, first = np.unique(np.round(vectors, 6), axis=0, return_index=True)
    return vectors[np.sort(first)]


def _logistic(good: np.ndarray, bad: np.ndarray, ridge: float = 1.0, steps: int = 20) -> np.ndarray:
    """(d + 1,): weights of a logistic regression that counts both kinds alike, by Newton's method.

    Args:
        good: (n, d).
        bad: (m, d).
        ridge: of the squared weights, the constant's too.
        steps: Newton's.
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
    """The method that ``settings`` names, one of ``OURS``."""
    methods = {"Protein": Protein, "ParetoGenetic": ParetoGenetic, "Random": Random}
    return methods[settings.method](space, settings, seed)


# ---- Sobol's sequence ----------------------------------------------------------------------------

BITS = 30


def sobol(points: int, dimensions: int, draw: np.random.Generator) -> np.ndarray:
    """(points, dimensions) float64 in [0, 1): the sequence's first, scrambled."""
    columns = _directions(dimensions, draw)  # (dimensions, BITS)
    columns = _scrambled(columns, draw)
    shifts = draw.integers(0, 1 << BITS, dimensions)
    gray = np.arange(points) ^ (np.arange(points) >> 1)
    numbers = np.tile(shifts, (points, 1))  # (points, dimensions)
    for bit in range(BITS):
        chosen = (gray >> bit & 1).astype(bool)
        numbers[chosen] ^= columns[:, bit]
    return numbers / (1 << BITS)


def _directions(dimensions: int, draw: np.random.Generator) -> np.ndarray:
    """(dimensions, BITS) int64: number k has its highest bit at BITS - 1 - k."""
    directions = np.empty((dimensions, BITS), np.int64)
    polynomials = islice(_primitive(), max(0, dimensions - 1))
    directions[:1] = 1 << (BITS - 1 - np.arange(BITS))  # the van der Corput sequence
    for row, polynomial in enumerate(polynomials, 1):
        degree = polynomial.bit_length() - 1
        numbers = [2 * int(draw.integers(1 << k)) + 1 for k in range(degree)]  # odd, below 2^(k+1)
        for k in range(degree, BITS):
            new = numbers[k - degree] ^ (numbers[k - degree] << degree)
            for j in range(1, degree):
                if polynomial >> (degree - j) & 1:
                    new ^= numbers[k - j] << j
            numbers.append(new)
        directions[row] = [numbers[k] << (BITS - 1 - k) for k in range(BITS)]
    return directions


def _primitive() -> Iterator[int]:
    """Primitive polynomials over GF(2), bits for coefficients, beginning with x + 1."""
    for degree in count(1):
        for polynomial in range((1 << degree) + 1, 2 << degree, 2):
            power, order = 1, 0
            while power != 1 or not order:  # the powers of x, modulo the polynomial
                power <<= 1
                power ^= polynomial * (power >> degree)
                order += 1
            if order == (1 << degree) - 1:
                yield polynomial


def _scrambled(columns: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Direction numbers times a random lower triangular matrix with ones on its diagonal.

    Bit i of a result, counted from the highest, is the parity of a random choice of the bits above
    it, and itself.
    """
    dimensions = len(columns)
    result = np.zeros_like(columns)
    for i in range(BITS):
        place = BITS - 1 - i
        above = draw.integers(0, 1 << i, dimensions) << (place + 1)  # i bits, all above bit i
        bits = columns & (above | 1 << place)[:, None]
        result |= (np.bitwise_count(bits).astype(np.int64) & 1) << place
    return result
