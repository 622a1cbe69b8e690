r"""Exact Gaussian process regression in double precision.

Kernel, for vectors x and y of d coordinates, with r^2 = sum_k ((x_k - y_k) / l_k)^2:

    s * (b x . y + c + (1 + sqrt(3) r) exp(-sqrt(3) r))

This is Matern's kernel of order 3/2 with one length l_k per coordinate, plus a constant and a
linear term. The process has a constant mean m and independent Gaussian noise. PufferLib uses b = 1;
a linear function is best in a corner, even in coordinates that don't matter, so b is 0 here. The
parameters maximize the log marginal likelihood

    log p(y) = -1/2 (y - m)^T K^-1 (y - m) - 1/2 log |K| - n/2 log(2 pi)

plus the log density of the noise's prior, LogNormal(log 0.01, 0.5). The optimizer is Adam (amsgrad)
with an analytic gradient.

Sources: PufferLib 4.0's Protein for the kernel and the prior; Rasmussen and Williams (2006),
equations 2.30, 4.17 and 5.9; Reddi et al. (2018) for amsgrad.
"""

import math
from typing import NamedTuple

import numpy as np

ROOT_3 = math.sqrt(3.0)
LEAST_NOISE = 1e-4
NOISE_PRIOR = (math.log(0.01), 0.5)  # mean and standard deviation of log noise
BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Parameters(NamedTuple):
    """Parameters of a Gaussian process.

    Args:
        lengths: Length scales l, (d,) float64.
        scale: Scale s of the kernel.
        offset: Constant c of the kernel.
        noise: Variance of the noise.
        mean: Mean m.
        line: Linear coefficient b.
    """

    lengths: np.ndarray
    scale: float
    offset: float
    noise: float
    mean: float
    line: float = 0.0


def first_parameters(dimensions: int) -> Parameters:
    """Return the initial parameters of a fit.

    Lengths grow with the square root of the number of coordinates, so that functions of many
    coordinates start as smooth as functions of few: Hvarfner et al. (2024).
    """
    return Parameters(np.full(dimensions, math.sqrt(dimensions)), 0.5, 0.5, 0.01, 0.5)


def kernel(a: np.ndarray, b: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Return the kernel between (n, d) and (m, d) vectors, without noise, (n, m) float64."""
    line, decay, distances = _parts(a, b, parameters)
    return parameters.scale * (line + (1 + distances) * decay)


def _parts(
    a: np.ndarray, b: np.ndarray, parameters: Parameters
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return linear part plus constant, exp(-sqrt(3) r) and sqrt(3) r, (n, m) each."""
    u, v = a / parameters.lengths, b / parameters.lengths
    squares = (u * u).sum(1)[:, None] + (v * v).sum(1) - 2 * (u @ v.T)
    distances = ROOT_3 * np.sqrt(np.maximum(squares, 0.0))
    return parameters.line * (a @ b.T) + parameters.offset, np.exp(-distances), distances


def log_likelihood(
    parameters: Parameters, x: np.ndarray, y: np.ndarray
) -> tuple[float, Parameters]:
    """Return the log marginal likelihood plus the log prior of the noise, and its gradient.

    Args:
        parameters: Parameters of the process.
        x: Points, (n, d) float64.
        y: Values, (n,) float64.

    Raises:
        numpy.linalg.LinAlgError: If the kernel matrix isn't positive definite.
    """
    lengths, scale, _, noise, mean, _ = parameters
    line, decay, distances = _parts(x, x, parameters)
    plain = line + (1 + distances) * decay
    matrix = scale * plain
    matrix.flat[:: len(y) + 1] += noise
    logarithm = 2 * np.log(np.diagonal(np.linalg.cholesky(matrix))).sum()
    inverse = np.linalg.inv(matrix)
    rest = y - mean
    weights = inverse @ rest
    value = -0.5 * (rest @ weights + logarithm + len(y) * math.log(2 * math.pi))

    slopes = 0.5 * (np.outer(weights, weights) - inverse)  # derivative of the value by the matrix
    # The derivative of Matern's part by l is 3 exp(-sqrt(3) r) (x - y)^2 / l^3. With (x - y)^2 =
    # x^2 - 2xy + y^2, the sums over pairs are matrix products.
    pulls = (3 * scale) * slopes * decay
    pairs = 2 * (pulls.sum(1) @ (x * x) - (x * (pulls @ x)).sum(0))
    centre, width = NOISE_PRIOR
    away = (math.log(noise) - centre) / width**2
    value += -math.log(noise) - 0.5 * away * (math.log(noise) - centre)
    gradient = Parameters(
        lengths=pairs / lengths**3,
        scale=float((slopes * plain).sum()),
        offset=scale * float(slopes.sum()),
        noise=float(np.trace(slopes)) - (1 + away) / noise,
        mean=float(weights.sum()),
    )
    return float(value), gradient


class Posterior:
    """Posterior of a Gaussian process, given observed points.

    Args:
        parameters: Parameters of the process.
        x: Observed points, (n, d) float64.
        y: Observed values, (n,) float64.
    """

    def __init__(self, parameters: Parameters, x: np.ndarray, y: np.ndarray) -> None:
        self.parameters = parameters
        self.x = x
        matrix = kernel(x, x, parameters)
        matrix.flat[:: len(y) + 1] += parameters.noise
        self._inverse = np.linalg.inv(matrix)  # (n, n)
        self._weights = self._inverse @ (y - parameters.mean)

    def means(self, points: np.ndarray) -> np.ndarray:
        """Return the posterior means at (m, d) points, (m,)."""
        return self.parameters.mean + kernel(points, self.x, self.parameters) @ self._weights

    def deviations(self, points: np.ndarray) -> np.ndarray:
        """Return the posterior standard deviations at (m, d) points, without noise, (m,)."""
        across = kernel(points, self.x, self.parameters)
        line = self.parameters.line * (points * points).sum(1)
        itself = self.parameters.scale * (line + self.parameters.offset + 1)
        variances = itself - ((across @ self._inverse) * across).sum(1)
        return np.sqrt(np.maximum(variances, 0.0))


def fit(
    x: np.ndarray,
    y: np.ndarray,
    steps: int,
    rate: float = 0.1,
    first: Parameters | None = None,
) -> Posterior:
    """Fit a Gaussian process by Adam on the logarithms of its parameters.

    Args:
        x: Points, (n, d) float64.
        y: Values, (n,) float64, best scaled to 0 to 1.
        steps: Number of Adam steps.
        rate: Learning rate: size of a step in the logarithms.
        first: Initial parameters; None for ``first_parameters``.
    """
    parameters = first or first_parameters(x.shape[1])
    raw = _raw(parameters)
    mean = np.zeros_like(raw)
    square = np.zeros_like(raw)
    largest = np.zeros_like(raw)
    for step in range(1, steps + 1):
        try:
            _, slope = log_likelihood(_parameters(raw), x, y)
        except np.linalg.LinAlgError:  # The noise is too small to separate two equal points.
            raw[-2] += 1.0
            continue
        gradient = _raw_gradient(raw, slope) / len(y)
        mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * square + (1 - BETAS[1]) * gradient**2
        largest = np.maximum(largest, square)
        rooted = np.sqrt(largest / (1 - BETAS[1] ** step)) + EPSILON
        raw += rate * mean / (1 - BETAS[0] ** step) / rooted
    return Posterior(_parameters(raw), x, y)


def _raw(p: Parameters) -> np.ndarray:
    """Return the optimized vector, (d + 4,): logarithms of parameters, and the mean.

    The noise enters as the logarithm of its excess over ``LEAST_NOISE``.
    """
    positive = [*p.lengths, p.scale, p.offset, max(p.noise - LEAST_NOISE, 1e-12)]
    return np.array([*np.log(positive), p.mean])


def _parameters(raw: np.ndarray) -> Parameters:
    positive = np.exp(np.clip(raw[:-1], -20, 20))
    scale, offset, noise = positive[-3:]
    return Parameters(positive[:-3], scale, offset, LEAST_NOISE + noise, raw[-1])


def _raw_gradient(raw: np.ndarray, slope: Parameters) -> np.ndarray:
    """Return the gradient by the optimized vector, given the gradient by the parameters."""
    by_value = np.array([*slope.lengths, slope.scale, slope.offset, slope.noise])
    return np.array([*(by_value * np.exp(np.clip(raw[:-1], -20, 20))), slope.mean])
