"""PufferLib 5.0's trainer: its arithmetic by hand, whole epochs against float64, its order."""

import math
from functools import partial

import mlx.core as mx
import numpy as np
import oracles
import pytest
from mlx.utils import tree_map
from oracles import f64, flat, named
from watching import functions, replace_functions

from puffer_mlx import config, vec
from puffer_mlx.errors import UserError
from puffer_mlx.policy.distributions import distribution
from puffer_mlx.ppo.advantage import advantages
from puffer_mlx.ppo.loss import METRICS, Targets, ppo_loss
from puffer_mlx.spec import ActionSpec
from puffer_mlx.training.trainer import Trainer

# ---- by hand -------------------------------------------------------------------------------------

LOGITS = [[0.2, -0.1, 0.4], [1, 0, -1], [0.3, 0.3, -0.5], [-0.2, 0.6, 0.1]]
LIVE = [0.45, -0.4, 0.1, 0.3]


def test_a_minibatch_by_hand():
    """One agent, four steps, three actions: the loss, its statistics and its gradients."""
    column = lambda numbers: mx.array(numbers, mx.float32)[:, None]  # noqa: E731
    rewards, terminals = column([0, 1, -2, 0.5]), column([0, 0, 1, 0])
    estimate = partial(advantages, gamma=0.9, gae_lambda=0.8, rho_clip=1, c_clip=1, reward_clip=1)
    adv = estimate(column(LIVE), rewards, terminals, None)
    np.testing.assert_allclose(np.array(adv)[:, 0], [-0.242, -0.6, 0.67, 0], rtol=0, atol=1e-6)
    batch = Targets(
        mx.array([-1.2, -1.35, -0.5, -0.9]), mx.array([0.3, 0.1, 0.05, 0.9]), adv.reshape(-1)
    )
    actions = mx.array([[2], [1], [0], [1]], mx.float32)

    def loss(logits, value):
        found = distribution(ActionSpec((3,))).log_prob_entropy(logits, actions, None)
        settings = {"clip_coef": 0.2, "vf_coef": 2.0, "vf_clip_coef": 0.2}
        return ppo_loss(*found, value, batch, ent_coef=mx.array(0.01), **settings)

    logits = mx.array(np.array(LOGITS, np.float32).T)
    (_, metrics), grads = mx.value_and_grad(loss, (0, 1))(logits, mx.array(LIVE))
    found = dict(zip(METRICS, map(float, np.array(metrics)), strict=True))
    expected = {
        **{"policy": 0.1116766, "value": 0.1846830, "entropy": 0.9991312, "total": 0.4710512},
        **{"old_kl": -0.0099866, "kl": 0.0356417, "clipfrac": 0.5},
    }
    assert found == pytest.approx(expected, abs=2e-6)
    assert 1 + found["kl"] - found["old_kl"] == pytest.approx(1.0456283, abs=2e-6)  # importance
    dlogits = [
        *([-0.0279660, -0.0209053, 0.0488713], [-0.0934938, 0.1065970, -0.0131032]),
        *([-0.0665669, 0.0461826, 0.0203843], [-0.0002610, 0.0003920, -0.0001310]),
    ]
    np.testing.assert_allclose(np.array(grads[0]).T, dlogits, rtol=0, atol=2e-6)
    np.testing.assert_allclose(np.array(grads[1]), [0.121, 0, -0.335, 0], rtol=0, atol=2e-6)


# ---- epochs against float64 ----------------------------------------------------------------------

T, N, S, K, H = 8, 8, 4, 3, 4
SIZES = 3, 2
OPTIONS = f"""
    --device cpu --train.algorithm puffer5 --policy.hidden-size {H} --policy.num-layers 2
    --reset-state False --policy.reset-on-terminal True --train.beta1 0.9
    --vec.total-agents {N} --vec.num-buffers 2 --train.horizon {T}
    --train.minibatch-size {S * T} --train.replay-ratio 1.5 --train.learning-rate 0.02
    --train.vf-clip-coef 0.05 --train.clip-coef 0.01 --train.ent-coef 0.02
    --train.anneal-ent-coef True --train.vtrace-rho-clip 0.99
"""


def start(epochs, *more):
    words = [*OPTIONS.split(), f"--train.total-timesteps={epochs * N * T}", *more]
    return Trainer(config.load("squared", words), oracles.RandomVec(N))


def states_of(trainer):
    """Each layer's recurrent state (N, H) of all agents."""
    groups = trainer.collector.states
    return [np.concatenate([f64(group[layer]) for group in groups]) for layer in range(2)]


def oracle_epoch(c, rollout, firsts, weights, momentum, epoch):
    """In float64, gradients by finite differences; changes the weights in place."""
    train, E = c.train, c.epochs
    rewards, terminals = np.clip(f64(rollout["rewards"])[:T], -1, 1), rollout["terminals"][:T]
    lr = oracles.cosine(train.learning_rate, 0, epoch, E)
    ent_coef = oracles.cosine(train.ent_coef, train.min_ent_coef_ratio * train.ent_coef, epoch, E)
    names = "clip_coef", "vf_coef", "vf_clip_coef"
    coefficients = {"ent_coef": ent_coef, **{name: getattr(train, name) for name in names}}
    parameters, statistics = [w for _, w in named(weights)], []
    for k in range(K):
        rows = slice(k * S % N, k * S % N + S)
        seen, ends = rollout["observations"][:T, rows], terminals[:, rows]
        actions, masks = rollout["actions"][:, rows], rollout["masks"][:T, rows]
        old_logprob, old_value = (f64(rollout[name])[:, rows] for name in ("logprobs", "values"))
        own = [first[rows] for first in firsts]

        def forward(given=(seen, own, ends), actions=actions, masks=masks):
            logits, value, _ = oracles.carried_policy(weights, *given)
            return *oracles.log_prob_entropy(logits, actions, SIZES, masks), value

        logprob, _, live = forward()
        ratios = np.exp(logprob - old_logprob) if train.vtrace else np.ones((T, S))
        clips = train.gamma, train.gae_lambda, train.vtrace_rho_clip, train.vtrace_c_clip
        adv = oracles.advantages((live, rewards[:, rows], ends, ratios), clips, "V")
        targets = old_logprob, old_value, adv, live + adv

        def loss(forward=forward, targets=targets):
            return oracles.clipped_loss(*forward(), *targets, **coefficients)

        statistics.append(loss()[1])
        grads = [oracles.numerical_gradient(lambda: float(loss()[0]), w) for w in parameters]
        after, momentum = oracles.muon(
            parameters, grads, momentum, lr, train.beta1, train.max_grad_norm
        )
        for w, new in zip(parameters, after, strict=True):
            w[:] = new
    return momentum, np.mean(statistics, axis=0)


@pytest.mark.parametrize("vtrace", [False, True])
def test_epochs_against_float64(vtrace):
    trainer = start(3, f"--train.vtrace={vtrace}")
    c = trainer.config
    assert (c.segments, c.minibatches, c.epochs) == (S, K, 3)
    clipped = 0
    for epoch in range(3):
        weights, firsts = tree_map(f64, trainer.weights), states_of(trainer)
        momentum = [f64(m) for _, m in named(trainer.train_state.optimizer)]
        logs = trainer.step()
        names = ("observations", "actions", "logprobs", "values", "rewards", "terminals", "masks")
        rollout = {name: np.array(getattr(trainer.collector.buffer, name)) for name in names}
        # the rollout: from the states of the one before, zeroed where an episode ended
        logits, value, lasts = oracles.carried_policy(
            weights, rollout["observations"][:T], firsts, rollout["terminals"][:T]
        )
        logprob, _ = oracles.log_prob_entropy(
            logits, rollout["actions"], SIZES, rollout["masks"][:T]
        )
        np.testing.assert_allclose(rollout["logprobs"], logprob, rtol=0, atol=1e-5)
        np.testing.assert_allclose(rollout["values"], value, rtol=0, atol=1e-5)
        np.testing.assert_allclose(states_of(trainer), lasts, rtol=0, atol=1e-5)
        assert (epoch == 0) == (np.abs(firsts).max() == 0)

        momentum, statistics = oracle_epoch(c, rollout, firsts, weights, momentum, epoch)
        np.testing.assert_allclose(flat(trainer.weights), flat(weights), rtol=0, atol=2e-5)
        optimizer = flat(trainer.train_state.optimizer)
        expected = np.concatenate([m.ravel() for m in momentum])
        np.testing.assert_allclose(optimizer, expected, rtol=0, atol=2e-5)
        found = [logs[f"loss/{name}"] for name in METRICS]
        np.testing.assert_allclose(found, statistics, rtol=0, atol=2e-5)
        # acting and training are the same policy, from the same states
        assert logs["loss/first_ratio_error"] < 1e-5
        clipped += logs["loss/clipfrac"] > 0
    assert clipped, "the case is too easy"


# ---- order ---------------------------------------------------------------------------------------


def watch(trainer):
    """Rows that are trained on, and the weights that acted for each epoch, as they happen."""
    rows, acted, real = [], [], functions(trainer)

    def gradients(weights, minibatch, *others):
        seen = np.array(trainer.collector.buffer.observations)[:T]
        observations = np.array(minibatch.observations)
        same = (seen[:, None] == observations[:, :, None]).all(axis=(0, 3))
        rows.append([int(agent) for agent in same.argmax(axis=1)])
        return real.gradients(weights, minibatch, *others)

    def recompute(fields, rollout):
        acted.append(rollout.weights)
        return real.recompute(fields, rollout)

    replace_functions(trainer, gradients=gradients, recompute=recompute)
    return rows, acted


def test_agents_in_their_order_and_the_first_ones_again():
    trainer = start(2)
    rows, _ = watch(trainer)
    list(trainer)
    first, second = list(range(S)), list(range(S, 2 * S))
    assert rows == [first, second, first] * 2


@pytest.mark.parametrize("overlap", [False, True])
def test_the_lag_is_one_epoch(overlap):
    """Epoch 0 trains on a rollout of its own weights, epoch e on one of those of epoch e - 1."""
    trainer = start(4, f"--train.overlap={overlap}")
    _, acted = watch(trainer)
    before = []  # what each epoch begins to train
    for epoch in range(4):
        before.append(trainer.weights)
        logs = trainer.step()
        # acting and training are the same policy, from the same states
        assert logs.get("loss/first_ratio_error", 0) < 1e-5
        assert "loss/first_ratio_error" in logs or (overlap and epoch != 1)
    expected = [0, 0, 1, 2] if overlap else [0, 1, 2, 3]
    identities = [id(weights) for weights in before]
    assert [identities.index(id(weights)) for weights in acted] == expected


def test_without_carrying_every_rollout_and_its_training_begin_from_zeros():
    trainer = start(2, "--reset-state", "True")
    trainer.step()
    assert np.abs(states_of(trainer)).max() > 0
    assert trainer.step()["loss/first_ratio_error"] < 1e-5
    assert math.isclose(trainer.global_step, 2 * N * T)


def test_normalized_advantages_are_its_alone():
    """They change the weights; the other trainers normalise anyway."""

    def trained(algorithm: str, loss: str) -> np.ndarray:
        words = "--device cpu --vec.total-agents 8 --train.horizon 8 --train.minibatch-size 32"
        words += f" --train.total-timesteps 64 --base.profile 0 --train.algorithm {algorithm}"
        chosen = config.load("squared", [*words.split(), "--train.loss", loss])
        with vec.make(chosen, 1) as environments:
            trainer = Trainer(chosen, environments)
            trainer.step()
            return flat(trainer.weights)

    clipped, normalized = (trained("puffer5", loss) for loss in ("clipped", "normalized"))
    assert np.isfinite(normalized).all() and np.abs(normalized - clipped).max() > 1e-5
    with pytest.raises(UserError, match="normalized is of puffer5: puffer4 normalises anyway"):
        trained("puffer4", "normalized")
