"""Evaluation after training: puffer4 keeps its environments, puffer5 makes new ones."""

from typing import Any

import numpy as np
import oracles
import pytest
from oracles import named

from puffer_mlx import config as c
from puffer_mlx import vec
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation import evaluator
from puffer_mlx.training.collectors import make_collector
from puffer_mlx.training.placement import rollout_cores
from puffer_mlx.training.trainer import Trainer

N, T, E = 8, 4, 2
OPTIONS = f"""
    --device cpu --policy.hidden-size 4 --policy.num-layers 1 --vec.total-agents {N}
    --vec.num-buffers 2 --train.horizon {T} --train.minibatch-size 16 --env.size 3
    --train.total-timesteps {E * N * T} --train.algorithm puffer5
"""


def configure(*more):
    return c.load("squared", [*OPTIONS.split(), *more])


class Telling(oracles.CodedVec):
    """Environments that report a given log after each rollout; ``closed`` after close()."""

    closed = False

    def __init__(self, agents, *said):
        super().__init__(agents, 2, (3,))
        self.said = iter(said)

    def log(self):
        return next(self.said, {})

    def close(self):
        self.closed = True


@pytest.fixture
def rollouts(monkeypatch):
    """Return a list that gets each rollout of an evaluation, in the order of collection."""
    seen = []

    def watched(*about):
        collector: Any = make_collector(*about)
        take = collector.take
        collector.take = lambda: seen.append(take()) or seen[-1]
        return collector

    monkeypatch.setattr(evaluator, "make_collector", watched)
    return seen


def native(config):
    return vec.make(config, rollout_cores(config))


def trained(config):
    """Train a run to its end. Returns the trainer and its records."""
    with native(config) as environments:
        trainer = Trainer(config, environments)
        return trainer, list(trainer)


# ---- what is rolled out --------------------------------------------------------------------------


def test_an_evaluation_repeats_the_first_noise_with_the_last_weights(rollouts):
    """Recurrent states are zero at first, and are carried from rollout to rollout."""
    config = configure("--reset-state", "True", "--eval-episodes", "1000")
    with native(config) as environments:
        key = np.array(Trainer(config, environments).state().arrays["key"])
    trainer, _ = trained(config)
    found = list(evaluator.evaluate_after_training(trainer, native))
    assert len(found) == len(rollouts) > 2
    np.testing.assert_array_equal(np.array(rollouts[0].key), key)
    for one in rollouts:
        for (_, ours), (_, theirs) in zip(named(one.weights), named(trainer.weights), strict=True):
            np.testing.assert_array_equal(np.array(ours), np.array(theirs))
    states = [np.concatenate([np.array(x) for _, x in named(one.states)]) for one in rollouts]
    assert not states[0].any() and states[1].any() and (states[1] != states[2]).any()
    again, _ = trained(config)
    assert (
        list(evaluator.evaluate_after_training(again, native)) == found
    )  # nothing of the training's end is in


def test_eval_agents_sets_the_number_of_agents_and_groups(rollouts):
    trainer, _ = trained(configure("--eval-agents", "3", "--eval-episodes", "2", "--vec.seed", "9"))
    list(evaluator.evaluate_after_training(trainer, native))
    assert rollouts[0].buffer.observations.shape[1] == 3
    made = evaluator.puffer5_evaluation_config(trainer.config)
    assert (made.vec.num_buffers, made.vec.seed, made.base.reset_state) == (1, 9, False)
    assert trainer.config.vec.num_buffers == 2
    assert evaluator.puffer5_evaluation_config(configure()).vec.total_agents == N


OF_4 = "--train.algorithm", "puffer4"


@pytest.mark.parametrize("words", [(), (*OF_4, "--eval-interval", "100")])
def test_eval_agents_must_be_a_multiple_of_an_environments_agents(words):
    pairs = Telling(N)
    pairs.num_environments = N // 2
    with pytest.raises(UserError, match="eval_agents 5 is not a multiple of an environment's 2"):
        evaluator.check_eval_agents(configure("--eval-agents", "5", *words), pairs)
    evaluator.check_eval_agents(configure("--eval-agents", "6", *words), pairs)
    evaluator.check_eval_agents(configure("--eval-agents", "5", *OF_4), pairs)  # unused there


# ---- when it ends --------------------------------------------------------------------------------


def evaluate_logs(*said, episodes=10, algorithm="puffer5"):
    """Evaluate a trainer in environments that report given logs.

    Returns the trainer, the records, and (score, episodes) of each record.
    """
    words = "--eval-episodes", str(episodes), "--train.algorithm", algorithm
    trainer = Trainer(configure(*words), Telling(N))
    list(trainer)
    environments = Telling(N, *said)
    found = list(evaluator.evaluate_after_training(trainer, lambda _: environments))
    assert environments.closed == (algorithm == "puffer5" and episodes > 0)
    assert {record["agent_steps"] for record in found} <= {trainer.global_step}
    return trainer, found, [(r.get("env/score"), r.get("env/n")) for r in found]


def test_an_evaluation_ends_after_eval_episodes():
    """The mean is over all of them."""
    six, four = {"score": 1.0, "n": 6.0}, {"score": 6.0, "n": 4.0}
    trainer, found, scores = evaluate_logs(six, four, six)
    assert scores == [(1, 6), (3, 10)]  # (6 * 1 + 4 * 6) / 10
    assert evaluator.incomplete_note(trainer, found[-1]) is None
    assert evaluate_logs(six, four, six, episodes=9)[2] == scores
    assert [n for _, n in evaluate_logs(six, four, six, episodes=11)[2]] == [6, 10, 16]
    assert evaluate_logs(six, episodes=0)[2] == []


def test_an_evaluation_ends_without_the_end_of_an_episode():
    """After as many steps as the training took: E rollouts of T steps."""
    one = {"score": 1.0, "n": 1.0}
    trainer, found, scores = evaluate_logs()
    assert scores == [(None, None)] * E
    note = evaluator.incomplete_note(trainer, found[-1])
    assert note and "after 0 of 10 episodes: no episode ended in 64 steps" in note
    assert len(evaluate_logs({}, one, {}, one)[2]) == 4 + E  # counted anew after each


def test_an_evaluation_ends_when_the_trainer_stops():
    trainer = Trainer(configure("--eval-episodes", "100"), Telling(N))
    list(trainer)
    said = [{"score": 1.0, "n": 1.0}] * 50
    for _ in evaluator.evaluate_after_training(trainer, lambda _: Telling(N, *said)):
        trainer.stop = True
    assert evaluator.incomplete_note(trainer, {}) is None
    assert not list(evaluator.evaluate_after_training(trainer, lambda _: Telling(N, *said)))


def test_puffer4_evaluates_in_its_own_environments():
    trainer = Trainer(configure("--train.algorithm", "puffer4"), Telling(N))
    list(trainer)
    (record,) = evaluator.evaluate_after_training(
        trainer, lambda _: pytest.fail("new environments")
    )
    assert record == {"agent_steps": (E + 1) * N * T}
    assert evaluator.incomplete_note(trainer, record) is None


# ---- what an epoch's record has ------------------------------------------------------------------


def test_puffer5_reports_the_importance_of_an_epoch():
    _, records = trained(configure("--train.learning-rate", "0.05"))
    for record in records:
        expected = 1 + record["loss/kl"] - record["loss/old_kl"]
        assert record["importance"] == pytest.approx(expected) and record["importance"] != 1
    _, records = trained(configure("--train.algorithm", "puffer4"))
    assert all("importance" not in record for record in records)
