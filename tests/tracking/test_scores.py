"""The mean score of the last 100 episodes: its value, its sources, and the resumed run's."""

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puffer_mlx import checkpoint, vec
from puffer_mlx import config as c
from puffer_mlx.tracking.scores import MEAN_SCORE, LastScores
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.episodes import Episodes

MEANS = st.tuples(st.integers(-1000, 1000), st.integers(1, 150))  # a score, its episodes


@settings(max_examples=50)
@given(st.lists(st.lists(MEANS, max_size=40), min_size=1, max_size=6))
def test_mean_is_of_the_last_100_episodes_also_after_a_restore(epochs):
    last = LastScores()
    assert last.mean() is None and last.state() is None
    scores = []
    for means in epochs:
        state = last.state()
        last = LastScores()
        last.add(np.array([[3.0, 1.0]]))
        last.restore(None if state is None else state.copy())
        last.add(np.array(means, float).reshape(-1, 2))
        scores += [score for score, episodes in means for _ in range(episodes)]
        expected = statistics.fmean(scores[-100:]) if scores else None
        assert last.mean() == (None if expected is None else pytest.approx(expected))


def test_scores_are_ordered_by_time_for_any_order_of_groups():
    def counted(order) -> Episodes:
        episodes = Episodes(4)
        for step in range(3):
            for first in order:
                ended = np.array([step == 1 or first == 2, step == 2])
                rewards = np.array([1.0, 10.0]) * (step + 1) + first
                episodes.add(rewards, ended, first=first)
        episodes.log()
        return episodes

    #       agent 2 at each step; agent 0 at the second; agents 1 and 3 at the third
    expected = [[score, 1.0] for score in (3.0, 3.0, 4.0, 60.0, 5.0, 66.0)]
    one = counted((0, 2))
    assert one.scores().tolist() == expected == counted((2, 0)).scores().tolist()
    one.log()
    assert len(one.scores()) == 0


def test_scores_average_to_the_logged_score():
    episodes = Episodes(2)
    infos = {0: {"score": 5.0}, 1: {"episode_return": 7.0}}
    episodes.add(np.ones(2), np.ones(2, bool), infos=infos)
    assert episodes.log()["score"] == 6.0
    assert episodes.scores().tolist() == [[5.0, 1.0], [7.0, 1.0]]
    episodes.add(np.ones(2), np.ones(2, bool))
    episodes.add_report({"score": 3.0, "n": 8})
    episodes.add_report({"other": 3.0})
    assert episodes.log()["score"] == 3.0
    assert episodes.scores().tolist() == [[3.0, 8.0]]


# ---- Runs ------------------------------------------------------------------------------------

N, T = 4, 16
WORDS = f"""--device cpu --vec.total-agents {N} --train.horizon {T} --train.minibatch-size {N * T}
    --vec.backend sync --train.replay-ratio 1 --policy.hidden-size 8 --policy.num-layers 1
    --train.total-timesteps {12 * N * T}""".split()


def run(*words: str):
    pytest.importorskip("gymnasium")
    config = c.load("gym:CartPole-v1", [*WORDS, *words])
    return config, vec.make(config, 1)


def test_epochs_report_the_mean_score_and_evaluations_do_not():
    config, opened = run("--train.overlap", "1", "--vec.normalize-rewards", "1")
    scores = []
    with opened as environments:
        trainer = Trainer(config, environments)
        for logs in trainer:
            ended = int(logs.get("env/n", 0))
            scores += [logs["env/score"]] * ended if ended else []  # the same mean of all so far
            assert len(scores) < 100
            expected = pytest.approx(statistics.fmean(scores)) if scores else None
            assert logs.get(MEAN_SCORE) == expected
        assert len(scores) > 10
        assert all(MEAN_SCORE not in record for record in trainer.evaluate())


def test_resume_restores_the_last_scores(tmp_path):
    """To the bit, including episodes that were collected but not trained on."""
    config, opened = run("--train.overlap", "1", "--vec.normalize-observations", "0")
    with opened as environments:
        trainer = Trainer(config, environments)
        logs = [trainer.step() for _ in range(7)][-1]
        about = config, environments.spec, trainer.policy, trainer.weights
        folder = checkpoint.write_checkpoint(tmp_path, 7, *about, trainer.state())
    config, opened = run("--vec.normalize-observations", "0")
    with opened as environments:
        again = Trainer(config, environments)
        again.restore(checkpoint.load(folder).weights, checkpoint.load_state(folder))
        assert again.epoch_logs.scores.mean() == logs[MEAN_SCORE]
        before = again.epoch_logs.scores.state()
        again.step()
        after = again.epoch_logs.scores.state()
        assert before is not None and after is not None
        assert np.array_equal(after[: len(before)], before)
