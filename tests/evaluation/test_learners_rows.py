"""Only the learner's rows are trained on, to the bit, whatever the opponents' rows contain."""

from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from native_envs import folder_of
from oracles import named
from watching import functions, replace_functions

from puffer_mlx import config, vec
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.rollout.policy_assignment import assign_in_blocks
from puffer_mlx.training.reader import TrainedAgents
from puffer_mlx.training.trainer import Trainer

AGENTS, T = 64, 8
SMALL = f"""
    --device cpu --policy.hidden-size 8 --policy.num-layers 1 --vec.total-agents {AGENTS}
    --vec.num-buffers 2 --train.horizon {T} --train.minibatch-size 128 --train.replay-ratio 1.5
    --train.total-timesteps {20 * AGENTS * T} --selfplay.enabled 1
""".split()
OF_4 = "--vec.num-frozen-banks 1 --vec.frozen-bank-pct 0.125 --selfplay.rules puffer4"
OF_5 = "--vec.num-policies 2 --vec.hist-policy-percent 0.25 --selfplay.rules puffer5"
CARRIES = ["--reset-state", "0", "--torch.network", "LSTM"]
WAYS = {
    "puffer5, states carried": ["--train.algorithm", "puffer5", *OF_5.split(), *CARRIES],
    "ppo, samples in one operation": [  # on a CPU
        *("--train.algorithm", "ppo", "--torch.network", "MLP", "--train.optimizer", "adam"),
        *("--policy.dialect", "sb3", *OF_4.split()),
    ],
    "ppo, segments": ["--train.algorithm", "ppo", *OF_4.split(), *CARRIES],
    "in bf16, through MLX": ["--train.precision", "bf16", *OF_4.split()],
}


def configure(*more: str, name: str = "connect4_two") -> config.Config:
    return config.load(name, [*SMALL, *more])


def spoilt(where: mx.array, number: float, array: mx.array) -> mx.array:
    return mx.where(where, number, array)


class Vandal:
    """Way of acting that then overwrites rows of the rollout and of recurrent states."""

    def __init__(self, inner: Any, rows: np.ndarray, number: float) -> None:
        self.inner, self.rows, self.number, self.in_c = inner, rows, number, inner.in_c

    def collect(
        self, buffer: RolloutBuffer, environments: Any, weights: Any, states: list, noise: mx.array
    ) -> Any:
        after = self.inner.collect(buffer, environments, weights, states, noise)
        bad = np.split(np.isin(np.arange(AGENTS), self.rows)[:, None], len(states))
        for group, own in enumerate(states):  # training reads these again
            where = mx.array(bad[group].tolist())
            states[group] = tree_map(partial(spoilt, where, self.number), own)
        views = buffer.views._asdict() | {"rewards": buffer.rows.rewards}
        for name, array in views.items():
            if array is not None and array.dtype == np.float32:
                array[:T, self.rows] = 1.0 if name == "terminals" else self.number
            elif array is not None:
                array[:T, self.rows] = 1
        return after


def train_with_spoilt_rows(
    settings: config.Config, rows: Any = (), number: float = 0.0
) -> dict[str, bytes]:
    """Train an epoch in which some agents' rows are overwritten; return weights and losses."""
    with vec.make(settings, 2) as environments:
        trainer = Trainer(settings, environments)
        trainer.collector.acting = Vandal(trainer.collector.acting, np.array(rows, int), number)
        logs = trainer.step()
        found = {name: np.array(array).tobytes() for name, array in named(trainer.weights)}
        losses = {name: value for name, value in logs.items() if name.startswith("loss/")}
        return {**found, "losses": str(losses).encode()}


@pytest.mark.parametrize("way", WAYS)
def test_opponents_rows_do_not_change_the_weights(way: str):
    settings = configure(*WAYS[way])
    with vec.make(settings, 1) as environments:
        opponents = assign_in_blocks(environments, 1, 0.125).rows(1)
    assert len(opponents) == AGENTS / 8
    whole = train_with_spoilt_rows(settings)
    assert train_with_spoilt_rows(settings, opponents, float("nan")) == whole
    assert train_with_spoilt_rows(settings, opponents, 3.0) == whole
    learners = opponents - 1  # adjacent agents
    assert train_with_spoilt_rows(settings, learners, 3.0) != whole


def test_train_on_opponents_trains_on_all_rows():
    settings = configure(*OF_4.split(), "--selfplay.train-on-opponents", "1")
    with vec.make(settings, 1) as environments:
        opponents = assign_in_blocks(environments, 1, 0.125).rows(1)
    assert train_with_spoilt_rows(settings, opponents, 3.0) != train_with_spoilt_rows(settings)


def test_minibatches_of_learners_repeat_the_first_rows():
    """56 learners, minibatches of 16 agents, 6 of them: 96 rows, the first 40 twice."""
    settings = configure("--train.algorithm", "puffer5", *OF_5.split())
    with vec.make(settings, 1) as environments:
        assignment = assign_in_blocks(environments, 1, 0.125)
    learners = assignment.learners.tolist()
    trained_agents = TrainedAgents(settings, assignment)
    assert trained_agents.rows.tolist() == learners + learners[:40]
    assert trained_agents.count == 56
    settings.train.minibatch_size = 8 * T  # which divides 56: each section is there once
    assert TrainedAgents(settings, assignment).rows.tolist() == learners


def test_a_pass_of_ppo_has_each_learner_at_most_once():
    """56 learners in minibatches of 16: three of a pass, none of them twice; six in all."""
    settings, orders = configure(*WAYS["ppo, segments"]), []

    with vec.make(settings, 2) as environments:
        trainer = Trainer(settings, environments)
        real = functions(trainer).shuffle

        def shuffle(*arguments: Any) -> Any:
            orders.append(np.array(arguments[-1]))
            return real(*arguments)

        replace_functions(trainer, shuffle=shuffle)
        trainer.step()
    assert [order.shape for order in orders] == [(3, 16), (3, 16)]
    for order in orders:
        assert len(np.unique(order)) == 48 and order.max() < 56


def test_a_trainer_uses_the_policies_that_a_folder_of_release_5_declares():
    sizes = "--vec.total-agents 96 --train.minibatch-size 384"
    settings = configure(*OF_5.split(), *sizes.split(), name=str(folder_of("peloton")))
    with vec.make(settings, 2) as environments:
        self_play = Trainer(settings, environments).self_play
        assert self_play is not None
        assert self_play.assignment.policy.tolist() == ([0] * 36 + [0, 1, 1] * 4) * 2
