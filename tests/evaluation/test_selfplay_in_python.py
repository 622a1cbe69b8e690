"""Self-play in Python environments: teams of PettingZoo whose agents may leave."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puffer_mlx import config, vec
from puffer_mlx.training.game_results import Results
from puffer_mlx.training.trainer import Trainer

pytest.importorskip("gymnasium")
DUEL = f"{Path(__file__).parents[1] / 'envs' / 'python' / 'zoo_duel.py'}:Duel"
AGENTS, T = 64, 8
WORDS = f"""
    --device cpu --vec.backend sync --vec.total-agents {AGENTS} --vec.num-buffers 2
    --policy.hidden-size 8 --policy.num-layers 1 --train.horizon {T} --train.minibatch-size 128
    --train.total-timesteps {4 * AGENTS * T} --selfplay.enabled 1 --selfplay.rules puffer4
    --vec.num-frozen-banks 1 --vec.frozen-bank-pct 0.25 --env.agents 4
""".split()


class Heard:
    """A league that records its results."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.results = inner, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def after(self, step: int, results: Results, weights: Any) -> Any:
        self.results.append(results)
        return self.inner.after(step, results, weights)


@pytest.mark.parametrize(
    ("leaves", "more"),
    [(False, ("--vec.normalize-rewards", "1")), (True, ("--train.overlap", "1"))],
)
def test_the_league_gets_the_results_of_pettingzoos_teams(leaves: bool, more: tuple[str, ...]):
    """A game has three steps and a row in which the next one starts: two in a rollout of 8."""
    settings = config.load(DUEL, [*WORDS, *more, "--env.leaves", str(int(leaves))])
    with vec.make(settings, 2) as environments:
        trainer = Trainer(settings, environments)
        assert trainer.self_play is not None and trainer.acts_in_c
        heard: Any = Heard(trainer.self_play.league)
        trainer.self_play.league = heard
        tags = trainer.self_play.seats.tags
        assert tags.tolist() == ([0] * 4 + [1] * 4) * 2
        first = 4 * np.flatnonzero(tags)  # agent 0 of each historical environment, who stays
        for _ in range(3):
            trainer.step()
            rows = trainer.collector.buffers[0].rows
            assert rows.finals is not None
            if not settings.train.overlap:  # else the buffer is written already
                paid = rows.rewards[1:, first][rows.finals[1:, first] > 0]
                score = (1 + np.sign(paid)) / 2
                assert heard.results[-1].score.tolist() == [score.sum()]
            assert heard.results[-1].games.tolist() == [2 * len(first)]
            assert (heard.results[-1].ended == (tags > 0)).all()
        assert len({float(each.score[0]) for each in heard.results}) > 1
