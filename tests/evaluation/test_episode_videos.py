"""Videos during training: when, what they show, and that they don't change the training."""

from pathlib import Path

import numpy as np
import pytest
from films import gif_pages
from native_envs import DRIFT
from running import BATCH, EPOCHS, TINY, cli, files, learned, records
from test_while_training import SMALL, E, N, T, make
from watching import everything

from puffer_mlx import config as c
from puffer_mlx.checkpoint.environment_statistics import copy_statistics
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation import episode_videos
from puffer_mlx.evaluation.episode_videos import (
    EpisodeVideos,
    check_drawable,
    record_episode,
    video_is_due,
)
from puffer_mlx.evaluation.episodes import AgentStepper, score_episodes
from puffer_mlx.evaluation.evaluator import Evaluator, evaluation_config
from puffer_mlx.training.trainer import Trainer

PYTHON = Path(__file__).parents[1] / "envs" / "python"
WALK = f"{PYTHON / 'gym_walk.py'}:Walk"

EVALUATED = "--eval-interval", "1", "--eval-episodes", "12"
VIDEOS = "--eval-video-interval", "2"


def configure(name, *more):
    return c.load(name, [*SMALL, *EVALUATED, *more])


def trained(config, folder):
    """Train with videos of episodes. Returns the trainer's final arrays as bytes, and records."""
    with make(config) as environments:
        trainer = Trainer(config, environments)
        evaluator = Evaluator(trainer, make)
        videos = EpisodeVideos(trainer, folder, pytest.fail)
        logs = [learned(log | evaluator.after_epoch() | videos.after_epoch()) for log in trainer]
        return everything(trainer), logs


# ---- training isn't changed ----------------------------------------------------------------------


def test_videos_do_not_change_the_training_and_replace_those_of_a_killed_run(tmp_path):
    words = "cartpole", "--vec.normalize-observations", "1"
    arrays, logs = trained(configure(*words), tmp_path / "plain")
    videos = tmp_path / "filmed" / "videos"
    videos.mkdir(parents=True)
    names = [f"{epoch * N * T:016d}.gif" for epoch in (2, 4)]
    (videos / names[1]).write_bytes(b"of a run that was killed")
    found, records = trained(configure(*words, *VIDEOS), tmp_path / "filmed")
    assert [key for key in arrays if arrays[key] != found[key]] == [] and records == logs
    assert files(tmp_path) == {f"filmed/videos/{name}" for name in names}
    assert gif_pages((videos / names[1]).read_bytes())


def test_videos_are_due_after_each_nth_evaluation_and_the_last():
    """An interval of 129 steps has evaluations after 256, 384 and 512 steps."""

    def due(interval: int, every: int) -> list[int]:
        words = "--eval-interval", str(interval), "--eval-video-interval", str(every)
        config = configure("squared", *words)
        return [epoch for epoch in range(E + 1) if video_is_due(config, epoch)]

    assert (due(1, 0), due(1, 3)) == ([], [3, 4])
    assert (due(N * T * 3, 1), due(N * T + 1, 2)) == ([3, 4], [3, 4])


# ---- what they show ------------------------------------------------------------------------------


def test_a_video_shows_the_first_episode_of_the_evaluation():
    words = "--eval-greedy=1", "--train.bootstrap-truncated=1", "--vec.backend=sync"
    config = configure(WALK, *words, *VIDEOS, "--vec.normalize-rewards=0", "--seed=1")
    with make(config) as environments:
        trainer = Trainer(config, environments)
        trainer.step()  # observations are normalised by what was seen
        frames = episode_videos._frames(trainer)
        with make(evaluation_config(config, environments)) as others:
            copy_statistics(environments, others)
            scores = score_episodes(
                AgentStepper(trainer.policy, trainer.weights, others, deterministic=True), 12
            )
    (first,) = [record for record in scores.episodes if record["env"] == 0]
    assert len(frames) == first["episode_length"] + 1
    assert frames[-1].total == first["episode_return"]
    raw = [frame.image[0].any(axis=1) for frame in frames]
    places = [int(np.flatnonzero(row).mean()) * 7 // len(row) - 3 for row in raw]
    rewards = [round(frame.reward, 3) for frame in frames[1:]]
    assert places[1:] == rewards  # it is paid where it is
    assert len(set(places)) > 1


def test_a_long_episode_is_thinned_and_an_endless_one_is_cut_off(monkeypatch):
    monkeypatch.setattr(episode_videos, "MIN_PICTURES", 3)
    monkeypatch.setattr(episode_videos, "MAX_EPISODE_STEPS", 20)
    config = configure("breakout")
    drawn = []

    def draw(observation):
        drawn.append(observation)
        return np.zeros((500, 700, 3), np.uint8)

    with make(config) as environments:
        trainer = Trainer(config, environments)
        frames = record_episode(AgentStepper(trainer.policy, trainer.weights, environments), draw)
    assert [frame.step for frame in frames] == [0, 4, 8, 12, 16]
    assert len(drawn) == 6 + 3 + 2  # 0 to 5; 6, 8, 10; 12, 16
    assert {frame.image.shape for frame in frames} == {(228, 320, 3)}


# ---- faults --------------------------------------------------------------------------------------


def test_an_environment_that_cannot_be_drawn_is_refused():
    config = configure(DRIFT["python"], *VIDEOS)
    with make(config) as environments, pytest.raises(UserError) as caught:
        check_drawable(config, environments)
    assert caught.value.message.startswith("base.eval_video_interval 2: ")
    assert caught.value.hint.endswith("; or --eval-video-interval 0")


@pytest.mark.parametrize("fault", ["draw", "disk"])
def test_a_failed_video_is_one_line_and_the_run_continues(tmp_path, monkeypatch, fault):
    config = configure("squared", "--env.size", "3", "--eval-video-interval", "1")
    if fault == "draw":
        monkeypatch.setattr(episode_videos, "find_draw", lambda _: lambda _: 1 // 0)
        why = "integer division or modulo by zero"
    else:
        (tmp_path / "videos").write_text("in the way")
        why = "can't write "
    said = []
    with make(config) as environments:
        trainer = Trainer(config, environments)
        videos = EpisodeVideos(trainer, tmp_path, said.append)
        for logs in trainer:
            assert "perf/video" in logs | videos.after_epoch() and videos.newest is None
    assert len(said) == E
    assert said[0].startswith(f"no video after {N * T} steps (training continues): {why}")
    assert not list(tmp_path.rglob("*.gif"))


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_refuses_before_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli("train").main([DRIFT["native"], *SMALL, *EVALUATED, *VIDEOS]) == 2
    assert "base.eval_video_interval 2: drift has no pictures" in capsys.readouterr().err
    assert not (tmp_path / "checkpoints").exists()


def test_the_command_saves_videos_beside_the_checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    each = "--eval-interval", str(BATCH), "--eval-episodes", "8"
    assert not cli("train").main([*TINY, *each, "--eval-video-interval", "4"])
    steps = [f"{BATCH * epoch:016d}.gif" for epoch in (4, EPOCHS)]
    assert sorted(path.name for path in tmp_path.glob("checkpoints/*/*/videos/*")) == steps
    assert [x["epoch"] for x in records(tmp_path) if "perf/video" in x] == [4, EPOCHS]
