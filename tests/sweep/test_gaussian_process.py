"""The Gaussian process against finite differences and a direct solution."""

import math

import numpy as np
import pytest

from puffer_mlx.sweep.gaussian_process import (
    Parameters,
    Posterior,
    fit_posterior,
    initial_parameters,
    kernel,
    log_likelihood,
)

D = 4


@pytest.fixture
def data():
    draw = np.random.default_rng(3)
    x = draw.uniform(-1, 1, (30, D))
    return x, np.sin(3 * x[:, 0]) + x[:, 1] + 0.1 * draw.standard_normal(30)


LENGTHS = np.array([0.5, 0.9, 2.0, 3.0])
AT = Parameters(LENGTHS, scale=0.7, offset=0.4, noise=0.02, mean=0.1, linear=0.6)


def one_by_one(a, b, p):
    """Compute the Gaussian process's kernel between points a and b, pair by pair."""
    values = np.empty((len(a), len(b)))
    for i, u in enumerate(a):
        for j, v in enumerate(b):
            r = math.sqrt(sum(((u - v) / p.lengths) ** 2))
            matern = (1 + math.sqrt(3) * r) * math.exp(-math.sqrt(3) * r)
            values[i, j] = p.scale * (p.linear * (u @ v) + p.offset + matern)
    return values


def test_log_likelihood_is_the_normal_density(data):
    x, y = data
    covariance = one_by_one(x, x, AT) + AT.noise * np.eye(len(y))
    _, logarithm = np.linalg.slogdet(covariance)
    rest = y - AT.mean
    expected = -0.5 * rest @ np.linalg.solve(covariance, rest)
    expected -= 0.5 * logarithm + 0.5 * len(y) * math.log(2 * math.pi)
    expected -= math.log(AT.noise) + (math.log(AT.noise) - math.log(0.01)) ** 2 / (2 * 0.5**2)
    assert log_likelihood(AT, x, y)[0] == pytest.approx(expected, rel=1e-6)


def test_gradient_is_the_slope(data):
    x, y = data
    plain = np.array([*AT.lengths, *AT[1:5]])  # the line isn't fitted
    gradient = log_likelihood(AT, x, y)[1]
    for k, slope in enumerate([*gradient.lengths, *gradient[1:5]]):
        step = np.zeros(len(plain))
        step[k] = 1e-5 * max(abs(plain[k]), 0.1)
        moved = (
            Parameters(end[:D], *end[D:], linear=AT.linear) for end in (plain + step, plain - step)
        )
        above, below = (log_likelihood(at, x, y)[0] for at in moved)
        assert slope == pytest.approx((above - below) / (2 * step[k]), rel=1e-4, abs=1e-5)


def test_kernel_is_its_formula_and_posterior_the_conditional_normal(data):
    x, y = data
    points = np.random.default_rng(4).uniform(-1, 1, (9, D))
    across = one_by_one(x, points, AT)
    np.testing.assert_allclose(kernel(x, points, AT), across, atol=1e-7)
    solved = np.linalg.solve(one_by_one(x, x, AT) + AT.noise * np.eye(len(y)), across)
    means = AT.mean + solved.T @ (y - AT.mean)
    variances = np.diagonal(one_by_one(points, points, AT) - across.T @ solved)
    posterior = Posterior(AT, x, y)
    np.testing.assert_allclose(posterior.means(points), means, atol=1e-6)
    np.testing.assert_allclose(posterior.deviations(points) ** 2, variances, atol=1e-6)


def test_fit_raises_the_likelihood_and_finds_the_important_dimension(data):
    x, y = data
    parameters = fit_posterior(x, y, steps=100).parameters
    assert log_likelihood(parameters, x, y)[0] > log_likelihood(initial_parameters(D), x, y)[0] + 5
    assert parameters.lengths[0] < min(parameters.lengths[2:]) and parameters.linear == 0


def test_equal_points_can_be_fitted():
    x = np.zeros((12, 2))
    posterior = fit_posterior(x, np.linspace(0, 1, 12), steps=60)
    assert posterior.means(x[:1])[0] == pytest.approx(0.5, abs=0.1)
