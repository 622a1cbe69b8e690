"""``train.rpo_alpha``: noise on the means of actions in the loss, and nowhere else."""

import numpy as np
import pytest
from oracles import flat
from watching import functions, replace_functions

from puffer_mlx import config, vec
from puffer_mlx.errors import UserError
from puffer_mlx.ppo.algorithms import ppo
from puffer_mlx.training.trainer import Trainer

COMMON = """
    --device cpu --seed 3 --vec.seed 5 --vec.total-agents 8 --vec.num-buffers 1
    --train.horizon 16 --train.minibatch-size 32 --train.learning-rate 0.001
    --train.total-timesteps 512 --policy.hidden-size 16
"""
WORDS = {
    "ppo at once": "--train.algorithm ppo --train.optimizer adam --train.replay-ratio 3"
    " --torch.network MLP --policy.dialect sb3 --policy.num-layers 1 --policy.separate-value 1",
    "ppo": "--train.algorithm ppo --train.optimizer adam --train.replay-ratio 2",
    "puffer4": "--train.algorithm puffer4 --train.replay-ratio 2",
    "puffer5": "--train.algorithm puffer5 --train.replay-ratio 2",
}


def settings(name: str, alpha: float = 0.5) -> config.Config:
    words = [*COMMON.split(), *WORDS[name].split(), f"--train.rpo-alpha={alpha}"]
    return config.load("cartpole_continuous", words)


def first_epoch(chosen: config.Config) -> tuple[np.ndarray, list[np.ndarray], dict[str, float]]:
    """Train an epoch; return the rollout's actions, those in each minibatch, and the metrics."""
    read: list[np.ndarray] = []
    with vec.make(chosen, 1) as environments:
        trainer = Trainer(chosen, environments)
        real = functions(trainer)

        def gradients(weights, minibatch, *others):
            read.append(np.asarray(minibatch.actions))
            return real.gradients(weights, minibatch, *others)

        replace_functions(trainer, gradients=gradients)
        logs = trainer.step()
        return np.array(trainer.collector.buffer.fields["actions"]), read, logs


@pytest.mark.parametrize("name", ["ppo", "puffer4", "puffer5"])
def test_each_minibatch_reads_actions_moved_by_its_own_noise(name):
    rollout, plain, logs = first_epoch(settings(name, 0))
    same_rollout, read, moved_logs = first_epoch(settings(name, 0.5))
    assert np.array_equal(rollout, same_rollout) and len(read) == len(plain) == 8
    assert np.isin(plain[0], rollout).all()
    noise = [read[0] - plain[0]]
    if name == "puffer5":  # its minibatches don't depend on what training changes
        noise = [a - b for a, b in zip(read, plain, strict=True)]
        assert not np.array_equal(noise[0], noise[4])  # the same samples once more
        assert abs(np.mean(noise)) < 0.1 and np.std(noise) == pytest.approx(0.5 / 3**0.5, abs=0.05)
    assert all(0.2 < np.abs(z).max() <= 0.5 + 1e-6 for z in noise)
    assert len(np.unique(noise[0])) > 0.9 * noise[0].size
    # Ratios of moved actions aren't 1, so their distance from 1 isn't reported.
    assert "loss/first_ratio_error" in logs and "loss/first_ratio_error" not in moved_logs


def weights_after_an_epoch(chosen: config.Config) -> np.ndarray:
    with vec.make(chosen, 1) as environments:
        trainer = Trainer(chosen, environments)
        trainer.step()
        return flat(trainer.weights)


def test_an_epoch_in_one_operation_has_the_noise_of_its_minibatches(monkeypatch):
    at_once = weights_after_an_epoch(settings("ppo at once"))
    without = weights_after_an_epoch(settings("ppo at once", 0))
    monkeypatch.setattr(ppo.small_networks, "supports_epoch", lambda *_: False)
    one_by_one = weights_after_an_epoch(settings("ppo at once"))
    np.testing.assert_allclose(at_once, one_by_one, rtol=0, atol=2e-5)
    assert np.abs(at_once - without).max() > 1e-4


def test_discrete_actions_and_negative_alphas_are_refused():
    chosen = config.load("cartpole", [*COMMON.split(), "--train.rpo-alpha", "0.3"])
    with vec.make(chosen, 1) as environments, pytest.raises(UserError) as raised:
        Trainer(chosen, environments)
    assert "train.rpo_alpha is 0.3, but RPO needs continuous actions" in str(raised.value)
    with pytest.raises(UserError, match=r"train\.rpo_alpha -1\.0"):
        settings("ppo", -1)
