r"""Exact Gaussian process regression in double precision.

The kernel of vectors x and y with d coordinates is, with r^2 = sum_k ((x_k - y_k) / l_k)^2:

    s * (b x . y + c + (1 + sqrt(3) r) exp(-sqrt(3) r))

This is Matern's kernel of order 3/2 with one length l_k per coordinate, plus a constant and a
linear term. The process has a constant mean m and independent Gaussian noise. PufferLib uses b = 1.
Here b is 0, because the maximum of a linear function is always in a corner of the space, so that
the search would move to the ends of all ranges, even of keys that don't matter. The parameters
maximize the log marginal likelihood

    log p(y) = -1/2 (y - m)^T K^-1 (y - m) - 1/2 log |K| - n/2 log(2 pi)

plus the log density of the noise's prior, LogNormal(log 0.01, 0.5). The optimizer is Adam (amsgrad)
with an analytic gradient.

Sources: PufferLib 4.0's Protein for the kernel and the prior; Rasmussen and Williams (2006),
equations 2.30, 4.17 and 5.9; Reddi et al. (2018) for amsgrad.
"""

import math
from typing import NamedTuple

import numpy as np

SQRT_3 = math.sqrt(3.0)
MIN_NOISE = 1e-4
NOISE_PRIOR = (math.log(0.01), 0.5)  # mean and standard deviation of log noise
ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
LOG_NOISE_INDEX = -2  # index in the vector that Adam optimizes (``_to_vector``)


class Parameters(NamedTuple):
    """Parameters of a Gaussian process: kernel, noise and mean.

    Args:
        lengths: Length scales l of the coordinates, (d,) float64.
        scale: Scale s of the kernel.
        offset: Constant c of the kernel.
        noise: Variance of the noise.
        mean: Constant mean m.
        linear: Coefficient b of the kernel's linear term.
    """

    lengths: np.ndarray
    scale: float
    offset: float
    noise: float
    mean: float
    linear: float = 0.0


def initial_parameters(dimensions: int) -> Parameters:
    """Return the parameters with which the fit of a Gaussian process starts.

    Lengths grow with the square root of the number of coordinates, so that functions of many
    coordinates start as smooth as functions of few: Hvarfner et al. (2024).
    """
    return Parameters(np.full(dimensions, math.sqrt(dimensions)), 0.5, 0.5, 0.01, 0.5)


def kernel(a: np.ndarray, b: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Return the Gaussian process's kernel matrix (n, m) of vectors a (n, d) and b (m, d).

    It doesn't include the noise.
    """
    linear, decay, distances = _kernel_terms(a, b, parameters)
    return parameters.scale * (linear + (1 + distances) * decay)


def _kernel_terms(
    a: np.ndarray, b: np.ndarray, parameters: Parameters
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the terms of a Gaussian process's kernel between two sets of vectors, (n, m) each.

    Returns:
        The linear term plus the constant, exp(-sqrt(3) r), and sqrt(3) r.
    """
    scaled_a = a / parameters.lengths
    scaled_b = b / parameters.lengths
    squares_a = (scaled_a * scaled_a).sum(1)[:, None]
    squares_b = (scaled_b * scaled_b).sum(1)
    squares = squares_a + squares_b - 2 * (scaled_a @ scaled_b.T)
    distances = SQRT_3 * np.sqrt(np.maximum(squares, 0.0))
    return parameters.linear * (a @ b.T) + parameters.offset, np.exp(-distances), distances


def log_likelihood(
    parameters: Parameters, x: np.ndarray, y: np.ndarray
) -> tuple[float, Parameters]:
    """Return a Gaussian process's log likelihood of observed values, and its gradient.

    The log likelihood includes the log prior of the noise.

    Args:
        parameters: Parameters of the process.
        x: Points, (n, d) float64.
        y: Values at the points, (n,) float64.

    Raises:
        numpy.linalg.LinAlgError: If the kernel matrix isn't positive definite.
    """
    lengths, scale, _, noise, mean, _ = parameters
    linear, decay, distances = _kernel_terms(x, x, parameters)
    unscaled = linear + (1 + distances) * decay
    matrix = scale * unscaled
    matrix.flat[:: len(y) + 1] += noise
    log_determinant = 2 * np.log(np.diagonal(np.linalg.cholesky(matrix))).sum()
    inverse = np.linalg.inv(matrix)
    residuals = y - mean
    weights = inverse @ residuals
    value = -0.5 * (residuals @ weights + log_determinant + len(y) * math.log(2 * math.pi))

    # Derivative of the value by the elements of the matrix.
    matrix_gradient = 0.5 * (np.outer(weights, weights) - inverse)
    # The derivative of Matern's term by l is 3 exp(-sqrt(3) r) (x - y)^2 / l^3. With (x - y)^2 =
    # x^2 - 2xy + y^2, the sums over pairs are matrix products.
    distance_gradient = (3 * scale) * matrix_gradient * decay
    length_sums = 2 * (distance_gradient.sum(1) @ (x * x) - (x * (distance_gradient @ x)).sum(0))
    prior_mean, prior_deviation = NOISE_PRIOR
    scaled_deviation = (math.log(noise) - prior_mean) / prior_deviation**2
    value += -math.log(noise) - 0.5 * scaled_deviation * (math.log(noise) - prior_mean)
    gradient = Parameters(
        lengths=length_sums / lengths**3,
        scale=float((matrix_gradient * unscaled).sum()),
        offset=scale * float(matrix_gradient.sum()),
        noise=float(np.trace(matrix_gradient)) - (1 + scaled_deviation) / noise,
        mean=float(weights.sum()),
    )
    return float(value), gradient


class Posterior:
    """Posterior of a Gaussian process: predicts values from observed points.

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
        """Predict the values of the fitted function at points (m, d). Returns (m,)."""
        return self.parameters.mean + kernel(points, self.x, self.parameters) @ self._weights

    def deviations(self, points: np.ndarray) -> np.ndarray:
        """Return the standard deviations (m,) of predictions at points (m, d), without noise."""
        covariances = kernel(points, self.x, self.parameters)
        linear = self.parameters.linear * (points * points).sum(1)
        prior_variances = self.parameters.scale * (linear + self.parameters.offset + 1)
        variances = prior_variances - ((covariances @ self._inverse) * covariances).sum(1)
        return np.sqrt(np.maximum(variances, 0.0))


def fit_posterior(
    x: np.ndarray,
    y: np.ndarray,
    steps: int,
    learning_rate: float = 0.1,
    initial: Parameters | None = None,
) -> Posterior:
    """Fit a Gaussian process to points by Adam on the logarithms of its parameters.

    Args:
        x: Points, (n, d) float64.
        y: Values, (n,) float64, best scaled to 0 to 1.
        steps: Number of Adam steps.
        learning_rate: Size of a step in the logarithms.
        initial: Initial parameters; None for ``initial_parameters``.

    Returns:
        The posterior with the fitted parameters.
    """
    parameters = initial or initial_parameters(x.shape[1])
    vector = _to_vector(parameters)
    first_moment = np.zeros_like(vector)
    second_moment = np.zeros_like(vector)
    max_second_moment = np.zeros_like(vector)
    for step in range(1, steps + 1):
        try:
            _, parameter_gradient = log_likelihood(_from_vector(vector), x, y)
        except np.linalg.LinAlgError:  # The noise is too small to separate two equal points.
            vector[LOG_NOISE_INDEX] += 1.0
            continue
        gradient = _vector_gradient(vector, parameter_gradient) / len(y)
        first_moment = ADAM_BETAS[0] * first_moment + (1 - ADAM_BETAS[0]) * gradient
        second_moment = ADAM_BETAS[1] * second_moment + (1 - ADAM_BETAS[1]) * gradient**2
        max_second_moment = np.maximum(max_second_moment, second_moment)
        root = np.sqrt(max_second_moment / (1 - ADAM_BETAS[1] ** step)) + ADAM_EPSILON
        vector += learning_rate * first_moment / (1 - ADAM_BETAS[0] ** step) / root
    return Posterior(_from_vector(vector), x, y)


def _to_vector(p: Parameters) -> np.ndarray:
    """Convert a Gaussian process's parameters to the vector that Adam optimizes, (d + 4,).

    The vector contains their logarithms, then the mean. The noise enters as the logarithm of its
    excess over ``MIN_NOISE``.
    """
    positive = [*p.lengths, p.scale, p.offset, max(p.noise - MIN_NOISE, 1e-12)]
    return np.array([*np.log(positive), p.mean])


def _from_vector(vector: np.ndarray) -> Parameters:
    """Convert the vector that Adam optimizes to a Gaussian process's parameters.

    This is the inverse of ``_to_vector``.
    """
    positive = np.exp(np.clip(vector[:-1], -20, 20))
    scale, offset, noise = positive[-3:]
    return Parameters(positive[:-3], scale, offset, MIN_NOISE + noise, vector[-1])


def _vector_gradient(vector: np.ndarray, gradient: Parameters) -> np.ndarray:
    """Convert a gradient by a Gaussian process's parameters to one by Adam's vector."""
    positive = np.array([*gradient.lengths, gradient.scale, gradient.offset, gradient.noise])
    # The derivative by log p is p times the derivative by p.
    logarithmic = positive * np.exp(np.clip(vector[:-1], -20, 20))
    return np.array([*logarithmic, gradient.mean])
