"""Record videos during training: ``base.eval_video_interval``.

After every n-th evaluation and after the last one, the policy plays one more episode in a separate
environment, which equals the evaluation's first environment. The video is saved in the run's folder
as ``videos/STEP.gif``; trackers and browsers can show GIFs.

Videos don't affect training, because they use a separate environment and separate random keys. A
resumed run records the videos of its epochs again and overwrites the earlier files.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from puffer_mlx import vec
from puffer_mlx.checkpoint import VIDEOS
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.episodes import AgentStepper
from puffer_mlx.evaluation.evaluator import evaluation_config, evaluation_is_due, trained_stepper
from puffer_mlx.evaluation.frames import (
    DrawFunction,
    Frame,
    find_draw,
    fit_picture,
    require_pillow,
    write_gif,
)
from puffer_mlx.training import placement
from puffer_mlx.training.epoch_logs import Logs
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments, VecEnv
from puffer_mlx.vec.normalize import Normalized
from puffer_mlx.vec.rows import allocate_rows

MIN_PICTURES = 300  # pictures of a long episode; there are at most twice as many
MAX_EPISODE_STEPS = 10_000  # longer episodes are cut off
MAX_SIDE = 320  # width and height in pixels
VIDEO_FPS = 30.0


class EpisodeVideos:
    """Record videos of a trainer's policy during a run. A failure doesn't stop the run.

    Args:
        trainer: Trainer of the run.
        folder: Folder of the run.
        report: Called with one line of text if a video can't be recorded.

    Attributes:
        newest: Path of the video recorded after the last epoch, or None.
    """

    def __init__(self, trainer: Trainer, folder: Path, report: Callable[[str], object]) -> None:
        self._trainer = trainer
        self._folder = folder / VIDEOS
        self._report = report
        self.newest: Path | None = None

    def after_epoch(self) -> Logs:
        """Record a video if one is due after this epoch. Returns the time it took, as metrics."""
        trainer = self._trainer
        self.newest = None
        if not video_is_due(trainer.config, trainer.epoch):
            return {}
        began = time.perf_counter()
        path = self._folder / f"{trainer.global_step:016d}.gif"
        try:
            write_gif(_frames(trainer), path, VIDEO_FPS)
            self.newest = path
        except Exception as error:  # environments may raise anything
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self._report(
                f"no video after {trainer.global_step:,} steps (training continues): {reason}"
            )
        return {"perf/video": time.perf_counter() - began}


def video_is_due(config: Config, epoch: int) -> bool:
    """Return True if a video of the policy is due after an epoch.

    Videos are recorded at every n-th evaluation and at the last one.
    """
    evaluations_per_video = config.base.eval_video_interval
    interval = config.base.eval_interval
    if not evaluations_per_video or not evaluation_is_due(config, epoch):
        return False
    # Evaluations so far: one per interval of steps, but at most one per epoch.
    evaluations = min(epoch, epoch * config.batch_size // interval)
    return epoch == config.epochs or evaluations % evaluations_per_video == 0


def check_drawable(config: Config, trained: VecEnv) -> None:
    """Check before training that videos can be recorded, by drawing one picture.

    Args:
        config: Configuration of the run.
        trained: Training environments.

    Raises:
        UserError: If the environment can't be drawn or a package is missing.
    """
    if not config.base.eval_video_interval:
        return
    try:
        require_pillow()
        with contextlib.closing(_environment(config, trained)) as environment:
            rows = allocate_rows(environment, environment.num_agents)
            environment.reset(rows)
            draw_function(config, environment)(rows.observations[0].copy())
    except UserError as error:
        message = f"base.eval_video_interval {config.base.eval_video_interval}: {error.message}"
        raise UserError(message, f"{error.hint}; or --eval-video-interval 0") from None


def draw_function(config: Config, environments: Environments) -> DrawFunction:
    """Return a function that draws an observation as a picture.

    The function comes from the environment's ``draw.py`` or the environment itself.

    Args:
        config: Configuration of the run.
        environments: Environments to draw; the first one is drawn.

    Raises:
        UserError: If the environment can't be drawn. The returned function raises it if drawing
            fails.
    """
    if not config.python:
        draw = find_draw(vec.source_folder(config))
        if isinstance(environments, Normalized):
            return lambda observation: draw(environments.raw(observation))
        return draw

    def render_picture(_: np.ndarray) -> np.ndarray:
        picture = environments.render()
        if isinstance(picture, bool):
            raise UserError(f"{config.env_name} draws in a separate window", "evaluate --window")
        return picture

    return render_picture


def record_episode(stepper: AgentStepper, draw: DrawFunction) -> list[Frame]:
    """Play one episode and return pictures of agent 0, evenly spaced over the episode.

    The number of pictures is limited to 2 ``MIN_PICTURES``: whenever the list is full, every second
    picture is dropped and the interval is doubled.

    Args:
        stepper: Environments after a reset. One environment is enough.
        draw: Maps an observation to a picture.
    """
    frames: list[Frame] = []
    interval = 1
    total = 0.0
    for step in range(MAX_EPISODE_STEPS):
        if step:
            stepper.step()
            if stepper.rows.terminals[0]:
                break
        reward = float(stepper.rows.rewards[0])
        total += reward
        if step % interval:
            continue
        image = fit_picture(draw(stepper.rows.observations[0].copy()), MAX_SIDE, MAX_SIDE)
        frames.append(Frame(image, step, 0, reward, total, False))
        if len(frames) == 2 * MIN_PICTURES:
            del frames[1::2]
            interval *= 2
    return frames


def _environment(config: Config, trained: VecEnv) -> Environments:
    """Create the environment in which a video is recorded: the first one of an evaluation.

    If the numbers of agents per environment differ, all environments are created.
    """
    all_environments = evaluation_config(config, trained)
    agents_each, remainder = divmod(trained.num_agents, trained.num_environments)
    agents = all_environments.vec.total_agents if remainder else agents_each
    backend = all_environments.vec.backend
    backend = "sync" if backend == "async" else backend  # the same observations, without processes
    video_config = replace(
        all_environments,
        vec=replace(all_environments.vec, total_agents=agents, backend=backend),
    )
    return vec.make(video_config, placement.rollout_cores(video_config), render=True)


def _frames(trainer: Trainer) -> list[Frame]:
    """Play one episode with a trainer's current weights. Returns its pictures."""
    config = trainer.config
    with contextlib.closing(_environment(config, trainer.vec)) as environment:
        return record_episode(
            trained_stepper(trainer, environment), draw_function(config, environment)
        )
