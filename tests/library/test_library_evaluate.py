"""``puffer_mlx.evaluate`` and ``puffer_mlx.play``."""

from typing import Any

import numpy as np
import pytest
from test_library_environments import SMALL, Count

import puffer_mlx
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.episodes import Scores

SQUARED: dict[str, Any] = {
    "total_agents": 8,
    "horizon": 32,
    "minibatch_size": 128,
    "total_timesteps": 1024,
}


@pytest.fixture(scope="module")
def counting():
    with puffer_mlx.train(Count, **SMALL) as trainer:
        yield trainer


def test_every_environment_plays_the_same_number_of_episodes(counting):
    scores = puffer_mlx.evaluate(counting, max_steps=2)
    assert str(scores) == "no episode ended in 2 steps" and scores.unfinished == 2
    scores = puffer_mlx.evaluate(counting, episodes=5)
    assert (scores.count, scores.environments, scores.each) == (6, 2, 3)
    assert scores.score == (5, 0, 5, 5, 5)
    assert str(scores) == "score 5 ± 0 (5 to 5), 6 episodes, deterministic"


def test_another_environment_may_be_given(counting):
    policy = puffer_mlx.Policy(counting)
    for env in (lambda: Count(7), Count(7)):
        assert puffer_mlx.evaluate(policy, env, episodes=2).score.mean == 7
    assert policy.config.factory is Count  # as it was


def test_the_same_seed_gives_the_same_scores():
    with puffer_mlx.train("gym:CartPole-v1", **SMALL) as trainer:

        def lengths(**how):
            scores = puffer_mlx.evaluate(trainer, episodes=4, **how)
            assert scores.deterministic == how.get("deterministic", True)
            return scores.episodes

        own = lengths()
        assert own == lengths(seed=trainer.config.base.seed) != lengths(seed=2)
        assert own != lengths(deterministic=False)


def test_an_evaluation_does_not_change_the_training():
    with (
        puffer_mlx.Trainer(SQUARED, "squared") as plain,
        puffer_mlx.Trainer(SQUARED, "squared") as watched,
    ):
        for _ in range(4):
            logs, seen = plain.step(), watched.step()
            puffer_mlx.evaluate(watched, episodes=2)
            assert logs["loss/total"] == seen["loss/total"]


def test_the_score_is_the_environments_score_or_else_perf():
    records = [
        {"env": 0, "n": 1, "perf": 0.5, "score": 3.0},
        {"env": 1, "n": 1, "perf": 1, "score": 5},
    ]
    assert Scores(records, 2, 1, 0, 10, 0.1).score.mean == 4
    for record in records:
        del record["score"]
    assert Scores(records, 2, 1, 0, 10, 0.1).score.mean == 0.75


def test_play_yields_pictures_of_episodes(counting):
    frames = list(puffer_mlx.play(counting, steps=4))
    assert [frame.image[0, 0, 0] for frame in frames] == [0, 1, 2, 3]
    own = Count(3, render_mode="rgb_array")
    ends = [frame.terminal for frame in puffer_mlx.play(counting, own, steps=5)]
    assert ends == [False, False, False, False, True]  # three steps, and the next episode's first
    assert own.closed == 0

    class Blind(Count):
        def render(self):
            return None

    with pytest.raises(UserError, match="its picture is None"):
        next(puffer_mlx.play(counting, Blind))
    with puffer_mlx.Trainer(SQUARED, "squared") as trainer:  # in C
        frames = list(puffer_mlx.play(puffer_mlx.Policy(trainer), steps=3))
    assert len(frames) == 3 and frames[0].image.dtype == np.uint8
