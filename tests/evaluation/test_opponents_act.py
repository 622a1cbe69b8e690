"""During a run opponents act with the league's weights and their own recurrent states."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from native_envs import OURS
from small_policies import weights_of

from puffer_mlx import config, vec
from puffer_mlx.distributed.single_process import SingleProcess
from puffer_mlx.errors import UserError
from puffer_mlx.training.game_results import GameResults
from puffer_mlx.training.self_play import create_self_play
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.trees import leaves

DUEL = f"{OURS / 'python' / 'zoo_duel.py'}:Duel"
AGENTS, T = 64, 6
WORDS = f"""
    --device cpu --policy.hidden-size 8 --policy.num-layers 1 --vec.total-agents {AGENTS}
    --vec.num-buffers 2 --train.horizon {T} --train.minibatch-size 96 --reset-state 0
    --train.total-timesteps {9 * AGENTS * T} --selfplay.enabled 1 --selfplay.rules puffer4
    --vec.num-frozen-banks 2 --vec.frozen-bank-pct 0.125
""".split()


class Fixed:
    """Stub of a self-play league whose opponent 2 is replaced at each rollout."""

    def __init__(self, policy: Any) -> None:
        self.trees = [weights_of(policy, seed) for seed in range(9)]
        mx.eval(self.trees)
        self.calls: list[tuple[int, Any]] = []
        self.results: list[GameResults] = []

    @property
    def opponents(self) -> list[Any]:
        return self.opponents_after(len(self.calls))

    def opponents_after(self, rollouts: int) -> list[Any]:
        """Return the weights of the league's opponents after a number of rollouts."""
        return [self.trees[0], self.trees[1 + rollouts]]

    @property
    def replaced(self) -> frozenset[int]:
        return frozenset({2} if self.calls else ())

    def finish_rollout(self, step: int, results: GameResults, weights: Any) -> dict[str, float]:
        self.calls.append((step, weights))
        self.results.append(results)
        return {"pool/calls": len(self.calls)}

    def state(self) -> Any:
        return {}, {}


class Spy:
    """Way of acting that also records the weights and recurrent states of each rollout."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.in_c, self.seen = inner, inner.in_c, []

    def collect(
        self, buffer: Any, environments: Any, weights: Any, states: Any, noise: mx.array
    ) -> Any:
        first = np.concatenate([np.array(leaves(state)[0].astype(mx.float32)) for state in states])
        self.seen.append((weights, first))
        return self.inner.collect(buffer, environments, weights, states, noise)


@contextmanager
def playing(*words: str, name: str = "connect4_two") -> Iterator[tuple[Trainer, Any]]:
    """Yield a trainer with self-play, and its league."""
    settings = config.load(name, [*WORDS, *words])
    with vec.make(settings, 2) as environments:
        trainer = Trainer(settings, environments)
        yield trainer, trainer.self_play


@pytest.mark.parametrize(("overlap", "lower"), [("0", "bf16"), ("1", "fp32")])
def test_opponents_act_with_the_leagues_weights(overlap: str, lower: str):
    with playing("--train.overlap", overlap, "--train.precision", lower) as (trainer, self_play):
        self_play.league = league = Fixed(trainer.policy)
        trainer.collector.acting = spy = Spy(trainer.collector.acting)
        first, second = (self_play.assignment.rows(opponent) for opponent in (1, 2))
        assert len(first) == len(second) == AGENTS / 8
        learners = [trainer.weights]
        for epoch in range(3):
            logs = trainer.step()
            assert logs["pool/calls"] == epoch + 1
            learners.append(trainer.weights)
        # The league is asked after each rollout, before the next one starts.
        assert [step for step, _ in league.calls] == [k * AGENTS * T for k in range(3)]
        assert all(
            weights is own for (_, weights), own in zip(league.calls, learners, strict=False)
        )
        assert len(spy.seen) == 3 + int(overlap)
        for k, (weights, states) in enumerate(spy.seen):
            acted = learners[max(0, k - int(overlap))]  # one update behind
            for found, given in zip(weights, [acted, *league.opponents_after(k)], strict=True):
                for mine, theirs in zip(leaves(found), leaves(given), strict=True):
                    assert lower == "fp32" or mine.dtype == mx.bfloat16
                    assert mx.allclose(mine.astype(mx.float32), theirs, 1e-2, 1e-2).item()
            assert np.abs(states[first]).any() == (k > 0)
            assert not np.abs(states[second]).any()  # another one each time


def test_the_league_gets_the_results_of_the_learners_games():
    """connect4 pays at the terminal. No game is longer than 42 moves."""
    with playing("--train.horizon", "48") as (trainer, self_play):
        self_play.league = league = Fixed(trainer.policy)
        assignment, rows = self_play.assignment, trainer.collector.buffer.rows
        for _ in range(2):
            trainer.step()
            for opponent in 1, 2:
                learners = assignment.rows(opponent) - 1  # who sit beside the opponent's agents
                over = rows.terminals[1:, learners] > 0
                score = (1 + rows.rewards[1:, learners][over]) / 2
                assert league.results[-1].score[opponent - 1] == score.sum()
                assert league.results[-1].games[opponent - 1] == over.sum() >= len(learners)


@pytest.mark.parametrize(
    ("leaves", "more"),
    [("0", ("--vec.normalize-rewards", "1")), ("1", ("--train.overlap", "1"))],
)
def test_the_league_gets_the_results_of_pettingzoos_teams(leaves: str, more: tuple[str, ...]):
    """A game has three steps and a row in which the next one starts: two in a rollout of 8."""
    words = "--train.horizon 8 --train.minibatch-size 128 --vec.backend sync --env.agents 4"
    with playing(*words.split(), "--env.leaves", leaves, *more, name=DUEL) as (trainer, self_play):
        assert trainer.acts_in_c
        self_play.league = league = Fixed(trainer.policy)
        tags = self_play.assignment.tags
        assert tags.tolist() == [0, 0, 0, 0, 1, 1, 2, 2] * 2
        for _ in range(3):
            trainer.step()
            rows, found = trainer.collector.buffers[0].rows, league.results[-1]
            for opponent in (1, 2) if leaves == "0" else ():  # else the buffer is written already
                first = 4 * np.flatnonzero(tags == opponent)  # agents 0, who stay
                paid = rows.rewards[1:, first][rows.final_observations[1:, first] > 0]
                assert found.score[opponent - 1] == ((1 + np.sign(paid)) / 2).sum()
            assert found.games.tolist() == [8, 8]
            assert (found.ended == (tags > 0)).all()
        assert len({tuple(each.score) for each in league.results}) > 1


def test_several_ranks_are_refused():
    class Two(SingleProcess):
        size = 2

    settings = config.load("connect4_two", WORDS)
    with (
        vec.make(settings, 1) as environments,
        pytest.raises(UserError, match="2 ranks train together"),
    ):
        create_self_play(settings, environments, None, Two())
