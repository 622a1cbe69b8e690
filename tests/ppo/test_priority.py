"""`ppo/priority.py`: probabilities of segments, the draw and its weights."""

import mlx.core as mx
import numpy as np
import oracles
import pytest

from puffer_mlx.ops import cpu_extension
from puffer_mlx.ppo import priority


def probabilities(totals, alpha):
    """Compute drawing probabilities of rows with given sums of absolute advantages."""
    totals = np.asarray(totals, dtype=np.float32)
    return np.array(
        priority.probabilities(mx.array(np.stack([totals * 0.25, totals * -0.75])), alpha)
    )


def draw(p, uniforms):
    rows = priority.draw_segments(mx.array(p, mx.float32), mx.array(uniforms, mx.float32))
    assert rows.dtype == mx.int32
    return np.array(rows)


def test_probabilities_and_weights_equal_hand_arithmetic():
    # W = sqrt(0, 1, 2, 10) = 0, 1, 1.4142136, 3.1622777, their sum 5.5764913;
    # p = (W + 1e-6) / 5.5764923
    p = probabilities([0, 1, 2, 10], 0.5)
    np.testing.assert_allclose(p, [1.793242e-7, 0.1793244, 0.2536029, 0.5670731], rtol=1e-5)
    # the sum of p is (5.5764913 + 4e-6) / 5.5764923 = 1.0000005
    assert np.sum(p, dtype=np.float64) == pytest.approx(1.0000005, abs=1.2e-7)
    # (4 p)^-.3: (7.173e-7)^-.3 = 69.7092, .7172976^-.3 = 1.1048166, ...
    weights = priority.importance_weights(mx.array(p), mx.array([0, 1, 2, 3, 3]), mx.array(0.3))
    expected = [69.7092, 1.1048166, 0.9957166, 0.7821504, 0.7821504]
    np.testing.assert_allclose(np.array(weights), expected, rtol=2e-6)


def test_probabilities_equal_float64():
    adv = np.random.default_rng(1).normal(size=(7, 50)).astype(np.float32) ** 3
    for alpha in (0.0, 0.3, 0.8, 1.0):
        found = np.array(priority.probabilities(mx.array(adv), alpha))
        np.testing.assert_allclose(found, oracles.probabilities(adv, alpha), rtol=3e-6)
    # uniform, even for a row without advantage
    np.testing.assert_allclose(probabilities([0, 1, 5, 1e30], 0.0), 0.25, rtol=1e-6)


def test_advantage_that_is_not_finite_counts_as_zero():
    for bad in (np.nan, np.inf, -np.inf):
        expected = [2.5e-7, 0.25, 0.75]  # 1e-6 / 4, 1 / 4, 3 / 4
        np.testing.assert_allclose(probabilities([bad, 1, 3], 1.0), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("n", [1, 1023])
def test_draw_equals_searchsorted(n):
    rng = np.random.default_rng(n)
    for sparse in (False, True):
        p = rng.random(n).astype(np.float32) ** 4
        if sparse:  # ties in the cumulative sum
            p[rng.random(n) < 0.6] = 0
        p = p / max(p.sum(), 1e-9)
        cdf = np.array(mx.cumsum(mx.array(p)))
        assert (np.diff(cdf) >= 0).all()
        uniforms = np.concatenate([1 - rng.random(300), cdf, np.nextafter(cdf, 2), [1.0, 1e-12]])
        uniforms = uniforms.astype(np.float32)
        expected = np.minimum(np.searchsorted(cdf, uniforms, side="left"), n - 1)
        np.testing.assert_array_equal(draw(p, uniforms), expected)


def test_annealed_beta_equals_hand_arithmetic():
    # .2 + .8 * .5 * 30 / 120 = .3; alpha scales the annealing, so beta ends at .6 and not at 1
    assert priority.annealed_beta(0.2, 0.5, 30, 120) == pytest.approx(0.3, abs=1e-12)
    assert priority.annealed_beta(0.2, 0.5, 0, 120) == 0.2
    assert priority.annealed_beta(0.2, 0.5, 120, 120) == pytest.approx(0.6, abs=1e-12)


@pytest.mark.parametrize(("alpha", "bad"), [(0.0, None), (0.6, np.nan)])
def test_choose_in_c_equals_plain_mlx(extension, monkeypatch, alpha, bad):
    rng = np.random.default_rng(3)
    adv = rng.normal(size=(5, 37)).astype(np.float32) ** 3
    if bad is not None:
        adv[2, 11] = bad
    uniforms = (1 - rng.random(500)).astype(np.float32)
    uniforms[:2] = 1.0, 1e-9
    arguments = mx.array(adv), mx.array(uniforms), mx.array(0.4), alpha
    rows, weights = map(np.array, priority.choose_segments(*arguments))
    monkeypatch.setattr(cpu_extension, "load_extension", lambda: None)
    plain, importance = map(np.array, priority.choose_segments(*arguments))
    assert rows.dtype == plain.dtype == np.int32 and len(set(rows)) > 10
    same = rows == plain  # a uniform within rounding of a cumulative sum may go either way
    assert same.mean() > 0.99 and np.abs(rows - plain).max() <= 1
    np.testing.assert_allclose(weights[same], importance[same], rtol=1e-5)
