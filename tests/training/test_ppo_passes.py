"""PPO's passes over a rollout: which samples, in which minibatches, and what becomes of them."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from watching import functions, replace_functions

from puffer_mlx import config, vec
from puffer_mlx.config.notes import unread
from puffer_mlx.errors import UserError
from puffer_mlx.ppo import small_networks
from puffer_mlx.ppo.sections import Pass
from puffer_mlx.training.learner import trainable_steps
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.trees import named

pytest.importorskip("gymnasium")

WORDS = """
    --device cpu --seed 3 --vec.seed 5 --vec.total-agents 3
    --train.algorithm ppo --train.optimizer adam --train.horizon 20 --train.minibatch-size 8
    --train.replay-ratio 3 --train.learning-rate 0.001 --train.total-timesteps 600
    --policy.dialect sb3 --policy.separate-value 1 --policy.num-layers 1 --policy.hidden-size 16
    --base.profile 0 --eval-episodes 0
"""


def settings(name="gym:CartPole-v1", *more: str) -> config.Config:
    return config.load(name, [*WORDS.split(), *more])


def seen(trainer: Trainer) -> tuple[list[list[list[float]]], list[list[float]]]:
    """One epoch's observations of each minibatch, and those of the rollout that may be learned."""
    found: list = []

    real = functions(trainer)

    def gradients(weights, minibatch, *others):
        observations = np.asarray(minibatch.observations)
        found.append(observations.reshape(-1, observations.shape[-1]).tolist())
        return real.gradients(weights, minibatch, *others)

    replace_functions(trainer, gradients=gradients)
    trainer.step()
    rows = trainer.collector.buffer.rows
    steps = trainer.config.train.horizon
    assert rows.finals is not None
    learned = rows.finals[:steps] == 0
    learned[-1] = False
    may = rows.observations[:steps][learned].tolist()
    return found, may


def test_a_pass_has_every_sample_that_is_known(monkeypatch):
    """Not the last step, nor an episode's last observation: their outcome is not the action's."""
    monkeypatch.setattr(small_networks, "fits", lambda policy, train: False)
    chosen = settings()
    with vec.make(chosen, 1) as environments:
        minibatches, may = seen(Trainer(chosen, environments))
    assert len(may) < 57  # of 60 samples: an episode ended in this rollout, besides the last steps
    assert [len(one) for one in minibatches] == [8] * chosen.minibatches
    each = Pass.of(False, 8, chosen.batch_size, chosen.minibatches)
    assert (each.minibatches, each.count) == (7, 4)
    whole = {tuple(row) for row in may}
    passes = [list(chain(*minibatches[k : k + 7])) for k in range(0, 21, 7)]
    for one in passes:
        times = Counter(map(tuple, one))
        assert set(times) <= whole
        least = len(may) if len(may) < 56 else 56
        assert len(times) == least and sum(times.values()) == 56  # some again where there are less
    assert passes[0] != passes[1] != passes[2]  # each in an order of its own


def test_a_rollout_of_which_nothing_is_known_ends_no_run():
    finals = np.array([[1.0], [0.0], [0.0]])
    assert trainable_steps(finals, 2, 1).all()
    assert trainable_steps(None, 3, 1)[:, 0].tolist() == [True, True, False]


@pytest.mark.parametrize("own", [[], ["--train.target-kl", "1e-4"]], ids=["", "target_kl"])
def test_a_run_goes_on_as_if_it_had_not_stopped(own):
    """Environments that can be saved: those in C."""
    more = ["--torch.network", "MLP", "--vec.total-agents", "8", "--vec.num-buffers", "1", *own]
    chosen = settings("cartpole", *more, "--train.total-timesteps", "1_600")

    def trained(trainer: Trainer, epochs: int) -> Trainer:
        for _ in range(epochs):
            trainer.step()
        return trainer

    with vec.make(chosen, 1) as environments:
        trainer = trained(Trainer(chosen, environments), 2)
        weights, state = trainer.weights, trainer.state()
        expected = trained(trainer, 2).weights
    with vec.make(chosen, 1) as environments:
        trainer = Trainer(chosen, environments)
        assert trainer.restore(weights, state)
        found = trained(trainer, 2).weights
    for (name, a), (_, b) in zip(named(found), named(expected), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b)), name


def test_keys_that_it_has_no_use_for_are_named():
    chosen = settings("gym:CartPole-v1", "--train.prio-alpha", "0.5", "--train.vtrace", "1")
    assert {"train.prio_alpha", "train.vtrace"} <= set(unread(chosen))


def test_minibatches_of_samples_are_of_any_size_and_of_segments_are_not():
    assert settings("gym:CartPole-v1", "--train.minibatch-size", "7").train.minibatch_size == 7
    with pytest.raises(UserError, match=r"minibatch_size 8 is not a multiple of train\.horizon 20"):
        settings("gym:CartPole-v1", "--torch.network", "GRU", "--policy.dialect", "native")
