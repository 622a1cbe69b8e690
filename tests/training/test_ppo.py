"""The algorithm ``ppo``: its samples, ``train.target_kl``, and segments of recurrent policies.

The T-maze shows its goal only at the start: without a recurrent state the mean return is at most
1.95, with one it is 4.
"""

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from oracles import same
from running import ROOT
from watching import functions, replace_functions

from puffer_mlx import config, vec
from puffer_mlx.errors import UserError
from puffer_mlx.ppo import small_networks
from puffer_mlx.ppo.loss import METRICS
from puffer_mlx.ppo.sections import Pass
from puffer_mlx.training.learner import trainable_steps
from puffer_mlx.training.trainer import Trainer

pytest.importorskip("gymnasium")

GYM = """
    --device cpu --seed 3 --vec.seed 5 --vec.total-agents 3 --train.algorithm ppo
    --train.optimizer adam --train.horizon 20 --train.minibatch-size 8 --train.replay-ratio 3
    --train.learning-rate 0.001 --train.total-timesteps 600 --policy.dialect sb3
    --policy.separate-value 1 --policy.num-layers 1 --policy.hidden-size 16
"""
NATIVE = """
    --device cpu --seed 3 --vec.seed 5 --vec.total-agents 8 --vec.num-buffers 1
    --train.algorithm ppo --train.optimizer adam --train.horizon 16 --train.minibatch-size 16
    --train.replay-ratio 3 --train.learning-rate 0.02 --train.total-timesteps 1024
    --policy.num-layers 1 --policy.hidden-size 16 --torch.network MLP
"""
RECURRENT = """
    --device cpu --seed 1 --vec.seed 1000 --vec.total-agents 8 --vec.backend sync
    --env.length 2 --reset-state False --policy.reset-on-terminal True
    --policy.hidden-size 64 --policy.num-layers 2 --policy.dialect native
    --train.algorithm ppo --train.horizon 64 --train.minibatch-size 256 --train.replay-ratio 10
    --train.optimizer adam --train.learning-rate 0.003 --train.lr-schedule linear
    --train.beta1 0.9 --train.gamma 0.99 --train.gae-lambda 0.95 --train.ent-coef 0.01
    --train.vf-coef 0.5 --train.max-grad-norm 0.5
"""
MAZE = f"{ROOT / 'benchmarks' / 'partial_environments.py'}:t_maze"


def gym_settings(*more: str) -> config.Config:
    return config.load("gym:CartPole-v1", [*GYM.split(), *more])


def native_settings(*more: str) -> config.Config:
    return config.load("cartpole", [*NATIVE.split(), *more])


def trained(chosen: config.Config, epochs: int) -> tuple[Trainer, list[dict[str, float]]]:
    """Train some epochs. Returns the trainer and each epoch's metrics."""
    with vec.make(chosen, 1) as environments:
        trainer = Trainer(chosen, environments)
        return trainer, [trainer.step() for _ in range(epochs)]


# ---- samples -------------------------------------------------------------------------------------


def first_epoch(trainer: Trainer) -> tuple[list[list[list[float]]], list[list[float]]]:
    """Train an epoch; return the observations of its minibatches and of the rollout.

    Only the rollout's trainable samples count.
    """
    minibatches: list = []
    real = functions(trainer)

    def gradients(weights, minibatch, *others):
        observations = np.asarray(minibatch.observations)
        minibatches.append(observations.reshape(-1, observations.shape[-1]).tolist())
        return real.gradients(weights, minibatch, *others)

    replace_functions(trainer, gradients=gradients)
    trainer.step()
    rows = trainer.collector.buffer.rows
    steps = trainer.config.train.horizon
    assert rows.final_observations is not None
    trainable = rows.final_observations[:steps] == 0
    trainable[-1] = False
    return minibatches, rows.observations[:steps][trainable].tolist()


def test_a_pass_contains_every_trainable_sample(monkeypatch):
    """Not the last step, nor an episode's last observation: neither has a known outcome."""
    monkeypatch.setattr(small_networks, "supports_epoch", lambda policy, train: False)
    chosen = gym_settings()
    with vec.make(chosen, 1) as environments:
        minibatches, trainable = first_epoch(Trainer(chosen, environments))
    assert len(trainable) < 57  # of 60 samples: an episode ended in this rollout
    assert [len(one) for one in minibatches] == [8] * chosen.minibatches
    each = Pass.of(False, 8, chosen.batch_size, chosen.minibatches)
    assert (each.minibatches, each.count) == (7, 4)
    passes = [list(chain(*minibatches[k : k + 7])) for k in range(0, 21, 7)]
    for one in passes:
        times = Counter(map(tuple, one))
        assert set(times) <= {tuple(row) for row in trainable}
        assert len(times) == min(len(trainable), 56) and sum(times.values()) == 56
    assert passes[0] != passes[1] != passes[2]


def test_a_rollout_without_trainable_samples_is_trained_whole():
    final_observations = np.array([[1.0], [0.0], [0.0]])
    assert trainable_steps(final_observations, 2, 1).all()
    assert trainable_steps(None, 3, 1)[:, 0].tolist() == [True, True, False]


def test_only_minibatches_of_segments_are_multiples_of_the_horizon():
    assert gym_settings("--train.minibatch-size", "7").train.minibatch_size == 7
    with pytest.raises(UserError, match=r"minibatch_size 8 is not a multiple of train\.horizon 20"):
        gym_settings("--torch.network", "GRU", "--policy.dialect", "native")


# ---- train.target_kl -----------------------------------------------------------------------------

TARGET = 0.02
BOUND = "--train.target-kl", str(TARGET)
CASES = {
    "one by one": ["--train.optimizer", "muon"],
    "segments, bf16": ["--torch.network", "GRU", "--train.precision", "bf16"],
    "overlapped": ["--train.overlap", "1", "--train.optimizer", "muon"],
}


@pytest.mark.parametrize("more", CASES.values(), ids=CASES)
def test_no_step_is_made_beyond_the_target_kl(more):
    chosen = native_settings(*BOUND, *more)
    counts = []
    events: list[float | None] = []  # each minibatch's KL, and None for each optimizer step

    with vec.make(chosen, 1) as environments:
        trainer = Trainer(chosen, environments)
        real = functions(trainer)

        def gradients(*arguments):
            losses, grads = real.gradients(*arguments)
            events.append(losses[1].tolist()[METRICS.index("kl")])
            return losses, grads

        def optimise(*arguments):
            events.append(None)
            return real.optimise(*arguments)

        replace_functions(trainer, gradients=gradients, optimise=optimise)
        for _ in range(4):
            events.clear()
            counts.append(trainer.step()["loss/minibatches"])
            *before, last = events
            assert before[1::2] == [None] * (len(before) // 2)
            assert all(kl is not None and kl <= 1.5 * TARGET for kl in before[::2])
            if last is None:
                assert counts[-1] == chosen.minibatches == len(events) / 2
            else:
                assert last > 1.5 * TARGET and counts[-1] == (len(events) + 1) / 2
    assert min(counts) < chosen.minibatches


@pytest.mark.parametrize("more", [[], ["--train.optimizer", "muon"]], ids=["at once", "steps"])
def test_a_target_kl_that_is_never_reached_changes_nothing(more):
    bounded, logs = trained(native_settings("--train.target-kl", "1e6", *more), 2)
    free, others = trained(native_settings(*more), 2)
    assert [log.pop("loss/minibatches") for log in logs] == [bounded.config.minibatches] * 2
    assert same(bounded.weights, free.weights)
    assert logs[1]["loss/kl"] == others[1]["loss/kl"] and "loss/minibatches" not in others[1]


def test_an_epoch_without_a_step_is_no_fault():
    """The second minibatch is beyond the target at the latest."""
    trainer, logs = trained(native_settings("--train.target-kl", "1e-30"), 2)
    assert all(log["loss/minibatches"] in (1, 2) for log in logs)
    assert trainer.error is None and all(np.isfinite(log["loss/total"]) for log in logs)


# ---- segments of recurrent policies --------------------------------------------------------------


def run_maze(network: str, steps: int, *more: str) -> list[dict[str, float]]:
    words = [*RECURRENT.split(), "--torch.network", network, *more]
    settings = config.load(MAZE, [*words, "--train.total-timesteps", str(steps)])
    with vec.make(settings, 1) as environments:
        return list(Trainer(settings, environments))


@pytest.mark.parametrize("network", ["MinGRU", "LSTM", "GRU"])
def test_a_segment_begins_with_its_rollouts_state(network):
    """Most rollouts of 16 steps begin within an episode."""
    words = "--env.length", "5", "--train.horizon", "16", "--train.minibatch-size", "64"
    logs = run_maze(network, 8 * 16 * 8, *words)
    assert max(record["loss/first_ratio_error"] for record in logs) < 1e-5


def test_a_recurrent_policy_solves_the_maze():
    *_, last = run_maze("MinGRU", 8_000)
    assert last["env/score_100"] > 3.5
