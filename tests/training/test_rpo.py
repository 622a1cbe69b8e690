"""train.rpo_alpha: noise on the means of actions where the loss reads them, and nowhere else."""

import mlx.core as mx
import numpy as np
import pytest
from watching import functions, replace_functions

from puffer_mlx import config, vec
from puffer_mlx.errors import UserError
from puffer_mlx.policy.distributions import Gaussian
from puffer_mlx.ppo.algorithms import ppo
from puffer_mlx.spec import ActionSpec
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.trees import named

COMMON = """
    --device cpu --seed 3 --vec.seed 5 --vec.total-agents 8 --vec.num-buffers 1
    --train.horizon 16 --train.minibatch-size 32 --train.learning-rate 0.001
    --train.total-timesteps 512 --policy.hidden-size 16 --base.profile 0 --eval-episodes 0
"""
WORDS = {
    "ppo": "--train.algorithm ppo --train.optimizer adam --train.replay-ratio 3 --torch.network MLP"
    " --policy.dialect sb3 --policy.num-layers 1 --policy.separate-value 1",
    "ppo, segments": "--train.algorithm ppo --train.optimizer adam --train.replay-ratio 2",
    "puffer4": "--train.algorithm puffer4 --train.replay-ratio 2",
    "puffer5": "--train.algorithm puffer5 --train.replay-ratio 2",
}


def settings(name, alpha=0.5, *more: str) -> config.Config:
    words = [*COMMON.split(), *WORDS[name].split(), f"--train.rpo-alpha={alpha}", *more]
    return config.load("cartpole_continuous", words)


def arrays(tree):
    return {name: np.asarray(array) for name, array in named(tree)}


def test_moved_actions_are_moved_means():
    """log N(a; mean + z, std) = log N(a - z; mean, std), in double precision by the formula."""
    normal, draw = Gaussian(ActionSpec((1, 1))), np.random.default_rng(1)
    mean, z, actions = draw.normal(size=(3, 7, 2))
    logstd = np.array([0.3, -0.7])
    away = (actions - (mean + z)) / np.exp(logstd)
    expected = (-0.5 * away**2 - 0.5 * np.log(2 * np.pi) - logstd).sum(1)
    outputs = mx.array(mean.T.astype(np.float32)), mx.array(logstd[:, None].astype(np.float32))
    moved = mx.array((actions - z).astype(np.float32))
    found, entropy = normal.log_prob_entropy(outputs, moved)
    assert np.allclose(np.asarray(found), expected, atol=1e-5)
    assert np.allclose(np.asarray(entropy), (0.5 + 0.5 * np.log(2 * np.pi) + logstd).sum())


def actions_of(chosen: config.Config) -> tuple[np.ndarray, list[np.ndarray]]:
    """A rollout's actions, and those that each minibatch's loss reads."""
    read: list[np.ndarray] = []

    with vec.make(chosen, 1) as environments:
        trainer = Trainer(chosen, environments)
        real = functions(trainer)

        def gradients(weights, minibatch, *others):
            read.append(np.asarray(minibatch.actions))
            return real.gradients(weights, minibatch, *others)

        replace_functions(trainer, gradients=gradients)
        trainer.step()
        return np.array(trainer.collector.buffer.fields["actions"]), read


@pytest.mark.parametrize("name", ["ppo, segments", "puffer4", "puffer5"])
def test_each_minibatch_reads_actions_moved_by_other_noise(name):
    """The same rollout, and minibatches of the same samples; of alpha 0 they are as they were."""
    plain, plain_read = actions_of(settings(name, 0))
    rollout, read = actions_of(settings(name, 0.5))
    assert np.array_equal(plain, rollout) and len(read) == len(plain_read) == 8
    assert np.isin(plain_read[0], plain).all()
    noise = [a - b for a, b in zip(read[:1], plain_read[:1], strict=True)]
    if name == "puffer5":  # its minibatches don't depend on what training changes
        noise = [a - b for a, b in zip(read, plain_read, strict=True)]
        assert not np.array_equal(noise[0], noise[4])  # the same samples once more
        assert abs(np.mean(noise)) < 0.1 and np.std(noise) == pytest.approx(0.5 / 3**0.5, abs=0.05)
    assert all(0.2 < np.abs(z).max() <= 0.5 + 1e-6 for z in noise)
    assert len(np.unique(noise[0])) > 0.9 * noise[0].size  # of each sample


def weights_after(chosen: config.Config, epochs: int = 2) -> dict[str, np.ndarray]:
    with vec.make(chosen, 1) as environments:
        trainer = Trainer(chosen, environments)
        for _ in range(epochs):
            trainer.step()
        return arrays(trainer.weights)


def test_an_epoch_at_once_is_its_minibatches_one_by_one(monkeypatch):
    at_once = weights_after(settings("ppo"), 1)
    without = weights_after(settings("ppo", 0), 1)
    with monkeypatch.context() as patch:
        patch.setattr(ppo.small_networks, "fits", lambda *_: False)
        one_by_one = weights_after(settings("ppo"), 1)
    for name, array in at_once.items():
        assert np.allclose(array, one_by_one[name], atol=2e-5), name
    assert any(np.abs(at_once[name] - without[name]).max() > 1e-4 for name in at_once)


@pytest.mark.parametrize("name", WORDS)
def test_a_run_that_was_resumed_has_the_same_noise(name):
    chosen = settings(name)
    with vec.make(chosen, 1) as environments:
        trainer = Trainer(chosen, environments)
        trainer.step()
        weights, state = trainer.weights, trainer.state()
        trainer.step()
        expected = arrays(trainer.weights)
    with vec.make(chosen, 1) as environments:
        trainer = Trainer(chosen, environments)
        assert trainer.restore(weights, state)
        trainer.step()
        found = arrays(trainer.weights)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert all(np.isfinite(array).all() for array in found.values())


def test_discrete_actions_have_no_means():
    chosen = config.load("cartpole", [*COMMON.split(), "--train.rpo-alpha", "0.3"])
    with vec.make(chosen, 1) as environments, pytest.raises(UserError) as raised:
        Trainer(chosen, environments)
    assert "train.rpo_alpha 0.3 moves the means of continuous actions" in str(raised.value)
    with pytest.raises(UserError, match=r"train\.rpo_alpha -1\.0"):
        settings("ppo", -1)


@pytest.mark.parametrize(("alpha", "checked"), [(0, True), (0.5, False)])
def test_ratios_of_moved_actions_are_not_compared_with_1(alpha, checked):
    chosen = settings("puffer4", alpha)
    with vec.make(chosen, 1) as environments:
        trainer = Trainer(chosen, environments)
        assert ("loss/first_ratio_error" in trainer.step()) == checked
