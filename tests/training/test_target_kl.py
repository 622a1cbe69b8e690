"""train.target_kl: an epoch's steps end where the policy is too far from the rollout's."""

import mlx.core as mx
import numpy as np
import pytest
from watching import functions, replace_functions

from puffer_mlx import config, vec
from puffer_mlx.errors import UserError
from puffer_mlx.ppo import small_networks
from puffer_mlx.ppo.loss import METRICS
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.trees import named

WORDS = """
    --device cpu --seed 3 --vec.seed 5 --vec.total-agents 8 --vec.num-buffers 1
    --train.algorithm ppo --train.optimizer adam --train.horizon 16 --train.minibatch-size 16
    --train.replay-ratio 3 --train.learning-rate 0.02 --train.total-timesteps 1024
    --policy.num-layers 1 --policy.hidden-size 16 --torch.network MLP --base.profile 0
"""
TARGET = 0.02
BOUND = "--train.target-kl", str(TARGET)
CASES = {
    "one by one": ["--train.optimizer", "muon"],
    "of segments": ["--torch.network", "GRU"],
    "bf16": ["--train.precision", "bf16"],
    "overlapped": ["--train.overlap", "1", "--train.optimizer", "muon"],
}


def settings(*more):
    return config.load("cartpole", [*WORDS.split(), *more])


def trained(chosen, epochs=4):
    with vec.make(chosen, 1) as environments:
        trainer = Trainer(chosen, environments)
        return trainer, [trainer.step() for _ in range(epochs)]


def watched(trainer, seen):
    """Have a trainer's learner tell the KL of each minibatch, and None for each step."""
    steps = functions(trainer)

    def gradients(*arguments):
        losses, grads = steps.gradients(*arguments)
        seen.append(losses[1].tolist()[METRICS.index("kl")])
        return losses, grads

    def optimise(*arguments):
        seen.append(None)
        return steps.optimise(*arguments)

    replace_functions(trainer, gradients=gradients, optimise=optimise)


@pytest.mark.parametrize("more", CASES.values(), ids=CASES)
def test_no_step_is_made_beyond_it(more):
    chosen, told = settings(*BOUND, *more), []
    with vec.make(chosen, 1) as environments:
        trainer, seen = Trainer(chosen, environments), []
        watched(trainer, seen)
        for _ in range(4):
            seen.clear()
            told.append(trainer.step()["loss/minibatches"])
            near, last = seen[:-1], seen[-1]
            assert near[1::2] == [None] * (len(near) // 2)
            assert all(kl <= 1.5 * TARGET for kl in near[::2])
            if last is None:
                assert told[-1] == chosen.minibatches == len(seen) / 2
            else:
                assert last > 1.5 * TARGET and told[-1] == (len(seen) + 1) / 2
    assert min(told) < chosen.minibatches  # it was too far away once


def test_all_at_once_it_ends_where_the_steps_do(monkeypatch):
    chosen = settings(*BOUND)
    at_once, found = trained(chosen, 1)
    assert small_networks.fits(at_once.policy, chosen.train)
    monkeypatch.setattr(small_networks, "fits", lambda policy, train: False)
    steps, expected = trained(chosen, 1)
    assert found[0]["loss/minibatches"] == expected[0]["loss/minibatches"] < chosen.minibatches
    assert found[0]["loss/kl"] == pytest.approx(expected[0]["loss/kl"], rel=1e-3)
    for (name, a), (_, b) in zip(named(at_once.weights), named(steps.weights), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=5e-5, err_msg=name)
    made = at_once.train_state.optimizer["step"].item()
    assert made == steps.train_state.optimizer["step"].item() == found[0]["loss/minibatches"] - 1


@pytest.mark.parametrize("more", [[], ["--train.optimizer", "muon"]], ids=["at once", "steps"])
def test_a_bound_that_is_never_reached_changes_nothing(more):
    bounded, logs = trained(settings("--train.target-kl", "1e6", *more), 2)
    free, others = trained(settings(*more), 2)
    assert [log.pop("loss/minibatches") for log in logs] == [bounded.config.minibatches] * 2
    for (_, a), (_, b) in zip(named(bounded.weights), named(free.weights), strict=True):
        assert mx.array_equal(a, b)
    assert logs[1]["loss/kl"] == others[1]["loss/kl"] and "loss/minibatches" not in others[1]


def test_a_rollout_that_is_too_far_away_from_the_start():
    """No step is made, and the run isn't taken to have learned nothing for want of finite ones."""
    chosen = settings("--train.target-kl", "1e-30", "--train.optimizer", "muon")
    trainer, logs = trained(chosen, 2)
    assert [log["loss/minibatches"] for log in logs] == [1, 1] or logs[0]["loss/minibatches"] == 2
    assert trainer.fault is None and all(np.isfinite(log["loss/total"]) for log in logs)


def test_whose_it_is():
    with pytest.raises(UserError) as caught:
        settings(*BOUND, "--train.algorithm", "puffer5")
    assert caught.value.message == (
        "train.target_kl 0.02 is of ppo's passes over a rollout, and train.algorithm is puffer5"
        " (command line)"
    )
    assert caught.value.hint == "algorithm='ppo', or target_kl=0"
