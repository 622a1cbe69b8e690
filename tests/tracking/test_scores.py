"""The mean score of the last 100 episodes: what it is, and that a run that goes on keeps it."""

import statistics

import mlx.core as mx
import numpy as np
import pytest

from puffer_mlx import checkpoint, vec
from puffer_mlx import config as c
from puffer_mlx.checkpoint import CheckpointManager
from puffer_mlx.tracking.scores import SCORE, LastScores
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import ReportsScores
from puffer_mlx.vec.episodes import Episodes


def single(values) -> np.ndarray:
    return np.stack([np.asarray(values, float), np.ones(len(values))], axis=1)


def test_the_mean_of_the_last_100():
    """Also of one that goes on from a state on the way."""
    last, values = LastScores(), np.random.default_rng(0).normal(size=1000)
    assert last.mean() is None and last.state() is None
    at = 0
    for count in (1, 0, 30, 68, 1, 1, 250, 7):
        state, last = last.state(), LastScores()
        last.add(single([3.0]))
        last.restore(None if state is None else state.copy())
        last.add(single(values[at : at + count]))
        at += count
        assert last.mean() == pytest.approx(statistics.fmean(values[max(0, at - 100) : at]))
    last.restore(None)
    assert last.mean() is None


def test_means_over_several_episodes_count_as_many():
    last = LastScores()
    last.add(np.array([[1.0, 60.0], [2.0, 30.0]]))
    assert last.mean() == pytest.approx((60 + 60) / 90)
    last.add(np.array([[5.0, 50.0]]))  # 140: of the first, 20 are among the last 100
    assert last.mean() == pytest.approx((20 * 1 + 30 * 2 + 50 * 5) / 100)
    last.add(np.array([[7.0, 500.0]]))
    assert last.mean() == 7


# ---- Where they come from --------------------------------------------------------------------


def test_scores_are_in_order_of_time_whatever_the_order_of_groups():
    def counted(order) -> Episodes:
        episodes = Episodes(4)
        for step in range(3):
            for first in order:
                ended = np.array([step == 1 or first == 2, step == 2])
                rewards = np.array([1.0, 10.0]) * (step + 1) + first
                episodes.add(rewards, ended, first=first)
        episodes.log()
        return episodes

    one, other = counted((0, 2)), counted((2, 0))
    #       agent 2 at each step; agent 0 at the second; agents 1 and 3 at the third
    expected = [3.0, 3.0, 4.0, 60.0, 5.0, 66.0]
    assert one.scores().tolist() == single(expected).tolist() == other.scores().tolist()
    one.log()
    assert len(one.scores()) == 0


def test_scores_are_what_the_log_is_the_mean_of():
    episodes = Episodes(2)
    infos = {0: {"score": 5.0}, 1: {"episode_return": 7.0}}
    episodes.add(np.ones(2), np.ones(2, bool), infos=infos)
    assert episodes.log()["score"] == 6.0
    assert episodes.scores().tolist() == [[5.0, 1.0], [7.0, 1.0]]
    episodes.add(np.ones(2), np.ones(2, bool))
    episodes.note({"score": 3.0, "n": 8})
    episodes.note({"other": 3.0})
    assert episodes.log()["score"] == 3.0 and episodes.scores().tolist() == [[3.0, 8.0]]


# ---- Runs ------------------------------------------------------------------------------------

N, T = 4, 16
WORDS = f"""--device cpu --vec.total-agents {N} --train.horizon {T} --train.minibatch-size {N * T}
    --vec.backend sync --train.replay-ratio 1 --policy.hidden-size 8 --policy.num-layers 1
    --train.total-timesteps {12 * N * T}""".split()


def run(*words: str):
    pytest.importorskip("gymnasium")
    config = c.load("gym:CartPole-v1", [*WORDS, *words])
    return config, vec.make(config, 1)


@pytest.mark.parametrize(("overlap", "normalised"), [("0", "1"), ("1", "0")])
def test_a_record_tells_it(overlap, normalised):
    words = "--train.overlap", overlap, "--vec.normalize-rewards", normalised
    config, opened = run(*words, "--vec.normalize-observations", normalised)
    scores = []
    with opened as environments:
        assert isinstance(environments, ReportsScores)
        trainer = Trainer(config, environments)
        for logs in trainer:
            ended = int(logs.get("env/n", 0))
            if ended == 0:
                assert logs.get(SCORE) == (statistics.fmean(scores) if scores else None)
                continue
            scores += [logs["env/score"]] * ended  # the mean of all so far is the same
            assert len(scores) < 100
            assert logs[SCORE] == pytest.approx(statistics.fmean(scores))
        assert len(scores) > 10
        assert all(SCORE not in record for record in trainer.evaluate())


def test_a_run_that_goes_on_has_the_same_last_episodes(tmp_path):
    """To the bit: through a file, whatever was collected and not trained on."""
    config, opened = run("--train.overlap", "1", "--vec.normalize-observations", "0")
    with opened as environments:
        trainer = Trainer(config, environments)
        logs = [trainer.step() for _ in range(7)][-1]
        about = config, environments.spec, trainer.policy, trainer.weights
        folder = checkpoint.write_checkpoint(tmp_path, 7, *about, trainer.state())
    config, opened = run("--vec.normalize-observations", "0")
    with opened as environments:
        again = Trainer(config, environments)
        assert not again.restore(checkpoint.load(folder).weights, checkpoint.load_state(folder))
        assert again.epoch_logs.scores.mean() == logs[SCORE]
        before = again.epoch_logs.scores.state()
        assert before is not None and len(before) > 16 * 5
        logs = again.step()
        ended = 16 * int(logs.get("env/n", 0))
        after = again.epoch_logs.scores.state()
        assert after is not None and len(after) == len(before) + ended
        assert np.array_equal(after[: len(before)], before)


def test_the_best_goes_by_it(tmp_path):
    """One lucky episode in an epoch is not what the run is worth."""
    config, opened = run("--vec.normalize-observations", "0")
    keeper, best = CheckpointManager(tmp_path, config), []
    with opened as environments:
        trainer = Trainer(config, environments)
        for step, scores in enumerate(([(1.0, 5.0)], [(99.0, 4.0)], [(0.0, 9.0), (0.0, 6.0)])):
            for newest, mean in scores:
                keeper.observe({"env/score": newest, "env/n": 1.0, SCORE: mean})
            keeper.save(step, environments.spec, trainer.policy, trainer.weights, None)
            best.append(int((tmp_path / "best").resolve().name))
    assert best == [0, 0, 2]
    path = str(tmp_path / f"{2:016d}" / "weights.safetensors")
    assert mx.load(path, return_metadata=True)[1]["score"] == "6.0"  # type: ignore
