"""An epoch in one operation against the same minibatches one after the other, in plain MLX."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from small_policies import compiled, policy_of, weights_of

from puffer_mlx.config import Train
from puffer_mlx.ppo import optimizers, precision, small_networks
from puffer_mlx.ppo.loss import METRICS
from puffer_mlx.trees import named_arrays

T, N, M, K = 12, 5, 16, 5
TRAIN = Train(
    algorithm="ppo",
    optimizer="adam",
    minibatch_size=M,
    horizon=T,
    max_grad_norm=0.4,
    weight_decay=0.01,
    clip_coef=0.15,
    vf_coef=0.7,
    vf_clip_coef=0.3,
)
LR, ENT = mx.array(0.003), mx.array(0.02)

POLICIES = {
    "several heads": {"sizes": (3, 2, 5), "dialect": "torch"},
    "native": {"sizes": (3,), "dialect": "native"},
    "tanh": {"sizes": (1, 1), "dialect": "sb3"},
    "relu": {"sizes": (3,), "dialect": "sb3", "activation": "relu", "separate_value": True},
    "own value, native": {"sizes": (1,), "dialect": "native", "separate_value": True},
    "no hidden layer": {"sizes": (2, 2), "dialect": "sb3", "layers": 0},
}


def made(sizes, masks=False, **others):
    """Return a policy, its weights, and a rollout with slightly different old probabilities."""
    layers, away = others.pop("layers", 2), others.pop("away", 0.2)
    policy = policy_of("MLP", sizes, layers=layers, **others)
    weights, rng = weights_of(policy), np.random.default_rng(1)
    observations = mx.array(rng.normal(size=(T + 1, N, 5)).astype(np.float32))
    mask = None
    if masks:
        mask = rng.integers(0, 2, (T + 1, N, sum(sizes))).astype(np.uint8)
        mask[..., 0] = mask[..., sizes[0]] = 1
        mask = mx.array(mask)
    flat = observations[:T].reshape(T * N, -1)
    outputs, values, _ = policy.step(weights, flat, policy.initial_state(T * N))
    noise = policy.distribution.noise(mx.random.key(2), (T * N,))
    given = None if mask is None else mask[:T].reshape(T * N, -1)
    actions, logprobs = policy.distribution.sample(outputs, noise, given)
    off = mx.array(rng.normal(size=(2, T * N)).astype(np.float32)) * away
    fields = {
        "observations": observations,
        "actions": actions.reshape(T, N, -1),
        "logprobs": (logprobs + off[0]).reshape(T, N),
        "values": (values + off[1]).reshape(T, N),
        "terminals": mx.zeros((T + 1, N)),
        "masks": mask,
        "final_observations": None,
    }
    adv = mx.array(rng.normal(size=(T, N)).astype(np.float32)) * 3 + 0.5
    order = mx.array(rng.permutation(K * M) % (T * N)).reshape(K, M).astype(mx.int32)
    return policy, weights, fields, adv, order


def one_by_one(policy, weights, fields, adv, order, train=TRAIN):
    """Train on the minibatches of an epoch one by one; return all results."""
    run, state = compiled(policy, train), optimizers.find_optimizer("adam").init(weights)
    scaler, metrics, oks = precision.first_scaler("fp32"), [], []
    for minibatch in run.shuffle(fields, adv, None, mx.ones((T, N)), order):
        (_, numbers, *_), grads = run.gradients(weights, minibatch, ENT, scaler["scale"])
        weights, state, scaler, ok = run.optimise(weights, state, scaler, grads, numbers, LR)
        metrics.append(numbers)
        oks.append(ok)
    return weights, state, scaler, mx.stack(metrics), mx.stack(oks)


def at_once(policy, weights, fields, adv, order, train=TRAIN):
    state, scaler = optimizers.find_optimizer("adam").init(weights), precision.first_scaler("fp32")
    given = weights, state, scaler, fields, adv, order, LR, ENT
    return small_networks.EpochOperation(policy, train)(*given)


def differences(found, expected):
    """Return the largest difference of each array of two trees, by name."""
    pairs = zip(named_arrays(found), named_arrays(expected), strict=True)
    return {
        name: float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())
        for (name, a), (other, b) in pairs
        if name == other
    }


@pytest.mark.parametrize("name", POLICIES)
def test_epoch_equals_separate_minibatches(name):
    given = made(**POLICIES[name])
    before = given[1]
    found, expected = at_once(*given), one_by_one(*given)
    moved = differences(expected[0], before)
    for one, limit in zip(range(4), (2e-5, 2e-5, 0, 2e-4), strict=True):
        wrong = differences(list(found[one : one + 1]), list(expected[one : one + 1]))
        assert wrong and max(wrong.values()) <= limit, wrong
    assert min(moved.values()) > 0  # every tensor was trained
    assert found[4].tolist() == expected[4].astype(mx.float32).tolist() == [1.0] * K


@pytest.mark.parametrize("made_steps", [0, 2])
def test_epoch_ends_at_the_first_minibatch_beyond_target_kl(made_steps):
    away = 0.2 if made_steps == 0 else 0  # the first is too far away only where rollouts are older
    policy, weights, fields, adv, order = made((1, 1), dialect="sb3", away=away)
    given = policy, weights, fields, adv
    everything = at_once(*given, order)
    metrics = np.array(everything[3])
    kl = metrics[:, METRICS.index("kl")]
    highest = kl[:made_steps].max(initial=0)
    assert highest < 0.9 * kl[made_steps]
    bounded = replace(TRAIN, target_kl=float(highest + kl[made_steps]) / 2 / 1.5)
    found = at_once(*given, order, bounded)
    counted = [1.0] * (made_steps + 1) + [0.0] * (K - made_steps - 1)
    assert found[4].tolist() == counted
    metrics[made_steps + 1 :] = 0
    np.testing.assert_array_equal(np.array(found[3]), metrics)
    assert found[2]["good"].item() == found[1]["step"].item() == made_steps
    expected = at_once(*given, order[:made_steps]) if made_steps else (weights,)
    assert max(differences(found[0], expected[0]).values()) == 0


def test_epoch_with_masks_and_bytes_equals_separate_minibatches():
    policy, weights, fields, adv, order = made((3, 2), masks=True, dialect="sb3")
    fields["observations"] = mx.array(
        np.random.default_rng(3).integers(0, 4, (T + 1, N, 5)).astype(np.uint8)
    )
    given = policy, weights, fields, adv, order
    assert max(differences(at_once(*given)[0], one_by_one(*given)[0]).values()) < 2e-5


def test_minibatch_that_is_not_finite_is_skipped_and_counted():
    policy, weights, fields, adv, order = made((1, 1), dialect="sb3")
    adv[0, 0] = mx.nan
    order = mx.where(order == 0, 1, order)
    order[1, 3] = order[2, 0] = 0
    given = policy, weights, fields, adv, order
    found, expected = at_once(*given), one_by_one(*given)
    assert found[4].tolist() == [1, 0, 0, 1, 1]
    assert max(differences(found[0], expected[0]).values()) < 2e-5
    counts = {name: number.item() for name, number in found[2].items()}
    assert counts == {"scale": 1.0, "good": 2, "skipped": 2, "in_a_row": 0, "longest": 2}
    assert found[1]["step"].item() == 3


def test_fits_only_supported_policies_and_settings(monkeypatch):
    policy = policy_of("MLP", (1,), dialect="sb3")
    assert small_networks.supports_epoch(policy, TRAIN)
    for other in ({"optimizer": "muon"}, {"precision": "bf16"}, {"minibatch_size": 1 << 20}):
        assert not small_networks.supports_epoch(policy, replace(TRAIN, **other))
    assert not small_networks.supports_epoch(policy_of("GRU", (1,), dialect="sb3"), TRAIN)
    monkeypatch.setattr(small_networks.EPOCH, "choose", lambda *_: None)
    assert not small_networks.supports_epoch(policy, TRAIN)  # without a BLAS
