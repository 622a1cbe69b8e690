"""`ppo/loss.py` with the distributions' log-probabilities, against float64."""

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import oracles
import pytest

from puffer_mlx.policy.distributions import Categorical
from puffer_mlx.ppo.loss import METRICS, Targets, normalise_advantages, normalized_loss, ppo_loss
from puffer_mlx.spec import ActionSpec

COEFFICIENTS = {"clip_coef": 0.2, "vf_coef": 2.0, "vf_clip_coef": 0.2, "ent_coef": 0.01}


def arrays(*xs):
    return [mx.array(np.asarray(x, dtype=np.float32)) for x in xs]


def ours(logits, value, actions, batch, sizes, mask=None, **coefficients):
    """Compute PPO's loss, metrics and gradients by the package, for logits (n, A)."""
    heads = Categorical(ActionSpec(sizes))
    coefficients = {**COEFFICIENTS, **coefficients}
    ent_coef = mx.array(coefficients.pop("ent_coef"))
    logits, value, actions, *batch = arrays(np.transpose(logits), value, actions, *batch)
    mask = None if mask is None else mx.array(mask)

    def loss(logits, value):
        logprob, entropy = heads.log_prob_entropy(logits, actions, mask)
        return ppo_loss(logprob, entropy, value, Targets(*batch), ent_coef=ent_coef, **coefficients)

    (total, metrics), (dlogits, dvalue) = mx.value_and_grad(loss, argnums=(0, 1))(logits, value)
    return total.item(), np.array(metrics), np.array(dlogits).T, np.array(dvalue)


def oracle(logits, value, actions, batch, sizes, mask=None, **coefficients):
    coefficients = {**COEFFICIENTS, **coefficients}
    logprob, entropy = oracles.log_prob_entropy(logits, actions, sizes, mask)
    return oracles.ppo_loss(logprob, entropy, value, *batch, **coefficients)


def test_normalise_leaves_one_advantage_and_makes_equal_ones_zero():
    alone = mx.array([3.5])
    assert normalise_advantages(alone).tolist() == [3.5]
    assert normalise_advantages(alone, mx.array([[[1.0], [3.5], [0.0]]])).tolist() == [3.5]
    assert normalise_advantages(mx.ones(4)).tolist() == [0.0] * 4


CASES = {"one head": ((4,), False), "masks": ((3, 2, 5), True)}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_equal_float64(case):
    sizes, masked = CASES[case]
    rng = np.random.default_rng(len(case))
    n, A = 60, sum(sizes)
    logits, value = rng.normal(size=(n, A)) * 1.5, rng.normal(size=n)
    mask = None
    if masked:
        mask = (rng.random((n, A)) < 0.6).astype(np.uint8) * 7  # any non-zero is legal
        mask[:, np.cumsum(sizes) - 1] = 1
        mask[:, 0] = 0
    legal = np.ones((n, A)) if mask is None else mask
    actions = np.stack(
        [
            [rng.choice(np.flatnonzero(row)) for row in head]
            for head in np.split(legal, np.cumsum(sizes)[:-1], axis=1)
        ],
        axis=1,
    )
    logprob, _ = oracles.log_prob_entropy(logits, actions, sizes, mask)
    old_logprob = logprob + rng.normal(size=n) * 0.4
    old_value = value + rng.normal(size=n) * 0.3
    adv, weight = rng.normal(size=n) * 2, rng.uniform(0.3, 2, n)
    batch = [x.astype(np.float32).astype(float) for x in (old_logprob, old_value, adv, weight)]
    logits, value = (x.astype(np.float32).astype(float) for x in (logits, value))
    total, metrics, dlogits, dvalue = ours(logits, value, actions, batch, sizes, mask)

    expected, statistics = oracle(logits, value, actions, batch, sizes, mask)
    assert total == pytest.approx(expected, rel=5e-6)
    names = "policy", "value", "entropy", "total", "old_kl", "kl", "clipfrac"
    statistics = dict(zip(names, statistics, strict=True))
    found = dict(zip(METRICS, metrics, strict=True))
    assert found == pytest.approx(statistics, rel=1e-5, abs=2e-6)

    def scalar():
        return float(oracle(logits, value, actions, batch, sizes, mask)[0])

    np.testing.assert_allclose(
        dlogits, oracles.numerical_gradient(scalar, logits), rtol=1e-4, atol=3e-7
    )
    np.testing.assert_allclose(
        dvalue, oracles.numerical_gradient(scalar, value), rtol=1e-4, atol=3e-7
    )
    if mask is not None:
        assert not dlogits[mask == 0].any()


def test_gradient_of_a_ratio_of_one_counts_once():
    zeros = mx.zeros(2)
    batch = Targets(zeros, zeros, mx.array([1.0, -1.0]), mx.ones(2))

    def loss(logprob):
        numbers = {"clip_coef": 0.25, "vf_coef": 0, "vf_clip_coef": 1}
        return ppo_loss(logprob, zeros, zeros, batch, ent_coef=mx.array(0.0), **numbers)[0]

    # advn = +-1 / sqrt(2): dL/dlogprob = -(1/2) * advn
    expected = [-0.5 * 0.5**0.5, 0.5 * 0.5**0.5]
    np.testing.assert_allclose(np.array(mx.grad(loss)(zeros)), expected, rtol=1e-5)


@pytest.mark.parametrize("limit", [0.0, 0.25])
def test_gradient_of_a_value_at_its_clip_is_the_unclipped_one(limit):
    # value - old_value = limit exactly: neither branch is larger, and the unclipped one's counts,
    # vf_coef / n * (value - ret) = 2 / 2 * (.5 + limit - 1.5), for both entries
    old = mx.array([0.5, 0.5])
    batch = Targets(mx.zeros(2), old, mx.ones(2), mx.ones(2))

    def loss(value):
        numbers = {"clip_coef": 0.2, "vf_coef": 2, "vf_clip_coef": limit}
        none = mx.zeros(2)
        return ppo_loss(none, none, value, batch, ent_coef=mx.array(0.0), **numbers)[0]

    np.testing.assert_allclose(np.array(mx.grad(loss)(old + limit)), limit - 1, rtol=1e-6)


def test_different_shapes_are_refused():
    logprob, entropy, value, *targets = [*(mx.zeros(6) for _ in range(6)), mx.zeros((2, 3))]
    with pytest.raises(ValueError, match="differ in shape"):
        numbers = {"clip_coef": 1, "vf_coef": 1, "vf_clip_coef": 1, "ent_coef": mx.array(0.0)}
        ppo_loss(logprob, entropy, value, Targets(*targets), **numbers)


def test_normalized_loss_equals_numpy():
    draw = np.random.default_rng(5)
    logprob, entropy, old, value, old_value, adv = draw.normal(size=(6, 9))
    old_value = value + 0.05  # within the clip
    adv = 0.1 * adv + 0.4
    ratio = np.exp(logprob - old)
    gain = -(adv - adv.mean()) / (adv.std(ddof=1) + 1e-8)
    policy = np.maximum(gain * ratio, gain * np.clip(ratio, 0.8, 1.2))
    taken = gain * ratio >= gain * np.clip(ratio, 0.8, 1.2)
    expected = policy.mean() + 2.0 * 0.5 * np.mean(adv**2) - 0.01 * entropy.mean()
    batch = Targets(*arrays(old, old_value, adv))
    coefficients = {**COEFFICIENTS, "ent_coef": mx.array(0.01)}

    def loss(*forward):
        now: Any = SimpleNamespace(logprob=forward[0], entropy=forward[1], value=forward[2])
        return normalized_loss(now, batch, **coefficients)

    (total, metrics), grads = mx.value_and_grad(loss, (0, 1, 2))(*arrays(logprob, entropy, value))
    assert total.item() == pytest.approx(expected, rel=1e-4)
    found = dict(zip(METRICS, map(float, np.array(metrics)), strict=True))
    assert found["policy"] == pytest.approx(policy.mean(), rel=1e-4)
    assert found["total"] == pytest.approx(expected, rel=1e-4)
    assert found["clipfrac"] == pytest.approx(np.mean(np.abs(ratio - 1) > 0.2))
    np.testing.assert_allclose(grads[0], np.where(taken, gain * ratio, 0) / 9, rtol=0, atol=2e-5)
    np.testing.assert_allclose(grads[1], -0.01 / 9, rtol=1e-4)
    np.testing.assert_allclose(grads[2], -2.0 * adv / 9, rtol=0, atol=2e-5)
