"""PufferLib 5.0's trainer: epochs against float64, the order of agents, and the lag."""

import numpy as np
import oracles
import pytest
from mlx.utils import tree_map
from oracles import f64, flat, named
from watching import functions, replace_functions

from puffer_mlx import config
from puffer_mlx.errors import UserError
from puffer_mlx.ppo.loss import METRICS
from puffer_mlx.training.trainer import Trainer

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
    """Return the recurrent states (N, H) of all agents in a trainer, one per layer."""
    groups = trainer.collector.states
    return [np.concatenate([f64(group[layer]) for group in groups]) for layer in range(2)]


def oracle_epoch(c, rollout, firsts, weights, momentum, epoch):
    """Compute an epoch of PufferLib 5.0 in float64, with gradients by finite differences.

    Changes weights in place.
    """
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
def test_epochs_equal_the_float64_oracle(vtrace):
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
        # Acting begins with the previous rollout's states, zeroed after an episode's end.
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
        assert logs["loss/first_ratio_error"] < 1e-5
        clipped += logs["loss/clipfrac"] > 0
    assert clipped, "the case is too easy"


# ---- order ---------------------------------------------------------------------------------------


def test_minibatches_take_agents_in_order_and_begin_again():
    trainer = start(2)
    rows, real = [], functions(trainer)

    def gradients(weights, minibatch, *others):
        seen = np.array(trainer.collector.buffer.observations)[:T]
        observations = np.array(minibatch.observations)
        same = (seen[:, None] == observations[:, :, None]).all(axis=(0, 3))
        rows.append([int(agent) for agent in same.argmax(axis=1)])
        return real.gradients(weights, minibatch, *others)

    replace_functions(trainer, gradients=gradients)
    list(trainer)
    first, second = list(range(S)), list(range(S, 2 * S))
    assert rows == [first, second, first] * 2


def test_overlapped_first_ratios_are_1():
    """Log-probabilities are recomputed, although the acting weights are one update old."""
    logs = list(start(4, "--train.overlap=1"))
    assert logs[1]["loss/first_ratio_error"] < 1e-5


def test_with_reset_state_acting_and_training_begin_from_zeros():
    trainer = start(2, "--reset-state", "True")
    trainer.step()
    assert np.abs(states_of(trainer)).max() > 0
    assert trainer.step()["loss/first_ratio_error"] < 1e-5


def test_normalized_advantages_are_an_option_of_puffer5_alone():
    """The other trainers always normalise."""
    clipped, normalized = (start(1, "--train.loss", loss) for loss in ("clipped", "normalized"))
    clipped.step()
    normalized.step()
    assert np.isfinite(flat(normalized.weights)).all()
    assert np.abs(flat(normalized.weights) - flat(clipped.weights)).max() > 1e-5
    with pytest.raises(UserError, match="normalized is for puffer5; puffer4 always normalises"):
        start(1, "--train.loss", "normalized", "--train.algorithm", "puffer4")
