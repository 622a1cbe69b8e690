"""`policy/distributions.py`: sampling, log-probabilities and entropies."""

import math

import mlx.core as mx
import numpy as np
import oracles
import pytest
from oracles import f64
from small_policies import PUFFER5

from puffer_mlx.policy.decoders import Fused
from puffer_mlx.policy.distributions import Categorical, Gaussian
from puffer_mlx.spec import ActionSpec


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


# ---- sampling ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "mean", "deviation"),
    [(Categorical(ActionSpec((3, 2))), 0.5, 12**-0.5), (Gaussian(ActionSpec((1, 1))), 0, 1)],
)
def test_noise_has_its_moments(heads, mean, deviation):
    noise = np.array(heads.noise(mx.random.key(0), (50, 1000)))
    assert noise.shape == (50, 1000, 2) and (mean == 0 or 0 < noise.min() <= noise.max() <= 1)
    np.testing.assert_allclose(noise.mean(axis=(0, 1)), mean, atol=0.015)
    np.testing.assert_allclose(noise.std(axis=(0, 1)), deviation, rtol=0.02)


def legal_masks(rng, n, sizes):
    """Return masks (n, A) with half of the actions legal, and at least one of each head."""
    mask = (rng.random((n, sum(sizes))) < 0.5).astype(np.uint8) * 3
    stops = np.cumsum(sizes)
    for start, stop in zip(stops - sizes, stops, strict=True):
        mask[np.arange(n), rng.integers(start, stop, n)] = 1
    return mask


@pytest.mark.parametrize(("sizes", "masked"), [((4,), False), ((3, 2, 5), True)])
def test_sample_inverts_the_distribution(sizes, masked):
    rng = np.random.default_rng(len(sizes))
    n = 4000
    logits, uniforms = (
        normal(rng, n, sum(sizes)) * 2,
        (1 - rng.random((n, len(sizes)))).astype(np.float32),
    )
    uniforms[:40], uniforms[40:80] = 1.0, 1e-7
    mask = legal_masks(rng, n, sizes) if masked else None
    heads = Categorical(ActionSpec(sizes))
    actions, logprobs = heads.sample(
        mx.array(logits.T), mx.array(uniforms), None if mask is None else mx.array(mask)
    )
    actions = np.array(actions)
    assert actions.shape == (n, len(sizes))
    starts = np.cumsum(sizes) - sizes
    for head, logp in enumerate(oracles.head_log_probs(f64(logits), sizes, mask)):
        cdf, u = np.cumsum(np.exp(logp), axis=-1), f64(uniforms[:, head, None])
        clear = (np.abs(cdf - u) > 1e-6).all(axis=-1)  # away from ties
        assert clear.mean() > 0.9
        first = np.argmax(cdf > u, axis=-1)  # the first whose running sum exceeds the uniform
        np.testing.assert_array_equal(actions[clear, head], first[clear])
        if mask is not None:
            assert mask[np.arange(n), starts[head] + actions[:, head].astype(int)].all()
            legal = mask[:40, starts[head] : starts[head] + sizes[head]] != 0
            likely = (np.exp(logp[:40]) > 1e-5) | ~legal
            last = sizes[head] - 1 - np.argmax(legal[:, ::-1], axis=-1)
            whole = likely.all(axis=-1)
            np.testing.assert_array_equal(actions[:40, head][whole], last[whole])  # at u = 1
    expected, _ = oracles.log_prob_entropy(f64(logits), actions, sizes, mask)
    np.testing.assert_allclose(np.array(logprobs), expected, rtol=2e-6, atol=4e-6)


def test_logits_that_are_not_finite_choose_a_legal_action():
    nan, inf = np.nan, np.inf
    logits = mx.array([[nan, 5, -inf, nan, inf], [0, inf, 0, nan, inf], [0, 0, -inf, nan, -inf]])
    heads = Categorical(ActionSpec((3,)))

    def chosen(u):
        actions, logprobs = heads.sample(logits, mx.full((5, 1), u))
        assert np.isfinite(np.array(logprobs)).all()
        return np.array(actions)[:, 0].tolist()

    # nan counts as 0: uniform over three in the first and fourth columns. inf takes all, -inf
    # nothing. Of two infinities the first takes all, as upstream: log(2) is lost beside 3.4e38, so
    # both have probability 1
    assert chosen(0.2) == [0, 1, 1, 0, 0]
    assert chosen(0.6) == [1, 1, 1, 1, 0]
    assert chosen(0.9) == [2, 1, 1, 2, 0]


# ---- continuous ----------------------------------------------------------------------------------


def test_mean_that_is_nan_acts_as_0():
    heads = Gaussian(ActionSpec((1,)))
    outputs = mx.array([[np.nan, 3.0]], dtype=mx.float32), mx.zeros((1, 1))
    actions, logprobs = heads.sample(outputs, mx.array([[0.5], [0.5]]))
    assert np.array(actions).ravel().tolist() == [0.5, 3.5]
    assert np.isfinite(np.array(logprobs)).all()


def test_limits_clip_actions_and_not_gradients():
    decoder = Fused(ActionSpec((1, 1)), 1, PUFFER5)
    weights = {"weight": mx.array([[1.0], [1.0], [0.0]]), "logstd": mx.array([[5.0, np.nan]])}
    h = mx.array([[2e6], [-2e6], [np.nan], [0.5]])
    outputs, _ = decoder(weights, h)
    noise = mx.array([[1.0, 1.0]] * 4)
    actions, logprobs = decoder.distribution.sample(outputs, noise)
    wide = np.exp(np.float32(2))  # a log standard deviation is at most 2
    expected = [[1e6, 1e6], [wide - 1e6, 1 - 1e6], [wide, 1], [0.5 + wide, 1.5]]
    np.testing.assert_allclose(np.array(actions), expected, rtol=1e-6)
    each = -2 - math.log(2 * math.pi)
    np.testing.assert_allclose(np.array(logprobs)[[0, 2]], [each, each - 1], rtol=1e-5)

    def scalar(h, logstd):
        outputs, _ = decoder({**weights, "logstd": logstd}, h)
        return mx.sum(decoder.distribution.log_prob_entropy(outputs, actions - 1)[0])

    by_h, by_logstd = mx.grad(scalar, argnums=(0, 1))(h, mx.array([[5.0, 0.0]]))
    assert (np.array(by_h) != 0).all() and (np.array(by_logstd) != 0).all()


# ---- the most probable action --------------------------------------------------------------------


def test_deterministic_action_is_the_largest_legal_logit():
    heads = Categorical(ActionSpec((3, 2)))
    logits = mx.array([[1.0, 5.0], [3.0, 0.0], [2.0, 1.0], [0.0, 1.0], [0.5, 0.0]])
    actions, logprobs = heads.sample(logits, None)
    assert np.array(actions).tolist() == [[1, 1], [0, 0]]
    expected, _ = heads.log_prob_entropy(logits, actions)
    np.testing.assert_array_equal(np.array(logprobs), np.array(expected))
    mask = mx.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 1]], mx.uint8)
    actions, _ = heads.sample(logits, None, mask)
    assert np.array(actions).tolist() == [[2, 0], [2, 1]]
