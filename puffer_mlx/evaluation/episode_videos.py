"""Record videos during training: ``base.eval_video_interval``.

After every n-th evaluation and after the last one, the policy plays one more episode in a separate
environment: the evaluation's first one, with the same seed. The video is a GIF, which trackers and
browsers can show. It is saved in the run's folder as ``videos/STEP.gif``; all videos are kept.

Videos don't affect training, which shares no environment and no random key with them. A resumed run
records the videos of its epochs again and overwrites the earlier files.
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
from puffer_mlx.evaluation.evaluator import is_due, settings, stepper_of
from puffer_mlx.evaluation.frames import Draw, Frame, find_draw, fit, refuse_missing, write_gif
from puffer_mlx.training import placement
from puffer_mlx.training.epoch_logs import Logs
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments, VecEnv
from puffer_mlx.vec.normalize import Normalized
from puffer_mlx.vec.rows import allocate_rows

PICTURES = 300  # a long episode has between n and 2n evenly spaced pictures
LONGEST = 10_000  # steps; longer episodes are cut off
SIDE = 320  # maximum width and height in pixels
FPS = 30.0


class EpisodeVideos:
    """Record videos of a trainer's run. A failure is reported and doesn't stop the run.

    Args:
        trainer: Trainer, called between two of its steps.
        folder: Folder of the run.
        say: Called with one line if a video can't be recorded.

    Attributes:
        newest: Path of the last epoch's video, or None.
    """

    def __init__(self, trainer: Trainer, folder: Path, say: Callable[[str], object]) -> None:
        self._trainer = trainer
        self._folder = folder / VIDEOS
        self._say = say
        self.newest: Path | None = None

    def after_epoch(self) -> Logs:
        """Record a video if one is due. Returns entries for the epoch's record."""
        trainer = self._trainer
        self.newest = None
        if not video_is_due(trainer.config, trainer.epoch):
            return {}
        began = time.perf_counter()
        path = self._folder / f"{trainer.global_step:016d}.gif"
        try:
            write_gif(_frames(trainer), path, FPS)
            self.newest = path
        except Exception as error:  # environments may raise anything
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self._say(f"no video after {trainer.global_step:,} steps, the run goes on: {reason}")
        return {"perf/video": time.perf_counter() - began}


def video_is_due(config: Config, epoch: int) -> bool:
    """Return True if an epoch ends with a video: every n-th evaluation and the last one."""
    every = config.base.eval_video_interval
    interval = config.base.eval_interval
    if not every or not is_due(config, epoch):
        return False
    before = min(epoch, epoch * config.batch_size // interval)  # evaluations up to this one
    return epoch == config.epochs or before % every == 0


def refuse_undrawable(config: Config, trained: VecEnv) -> None:
    """Draw one picture to check, before training, that videos can be recorded.

    Args:
        config: Configuration of the run.
        trained: Training environments.

    Raises:
        UserError: If the environment can't be drawn or a package is missing.
    """
    if not config.base.eval_video_interval:
        return
    try:
        refuse_missing()
        with contextlib.closing(_environment(config, trained)) as environment:
            rows = allocate_rows(environment, environment.num_agents)
            environment.reset(rows)
            drawing(config, environment)(rows.observations[0].copy())
    except UserError as error:
        message = f"base.eval_video_interval {config.base.eval_video_interval}: {error.message}"
        raise UserError(message, f"{error.hint}; or --eval-video-interval 0") from None


def drawing(config: Config, environments: Environments) -> Draw:
    """Return a function that draws a step, from the environment or its ``draw.py``.

    Raises:
        UserError: If the environment has no pictures. The returned function raises it if
            drawing fails.
    """
    if not config.python:
        draw = find_draw(vec.source_folder(config))
        if isinstance(environments, Normalized):
            return lambda observation: draw(environments.raw(observation))
        return draw

    def drawn(_: np.ndarray) -> np.ndarray:
        picture = environments.render()
        if isinstance(picture, bool):
            raise UserError(f"{config.env_name} draws in a window of its own", "evaluate --window")
        return picture

    return drawn


def episode(stepper: AgentStepper, draw: Draw) -> list[Frame]:
    """Return pictures of agent 0 in its first episode: at least 1, fewer than 2 ``PICTURES``.

    Whenever the list is full, every second picture is dropped and the distance is doubled.

    Args:
        stepper: Environments after a reset. One environment is enough.
        draw: Maps an observation to a picture.
    """
    frames: list[Frame] = []
    distance = 1
    total = 0.0
    for step in range(LONGEST):
        if step:
            stepper.step()
            if stepper.rows.terminals[0]:
                break
        reward = float(stepper.rows.rewards[0])
        total += reward
        if step % distance:
            continue
        image = fit(draw(stepper.rows.observations[0].copy()), SIDE, SIDE)
        frames.append(Frame(image, step, 0, reward, total, False))
        if len(frames) == 2 * PICTURES:
            del frames[1::2]
            distance *= 2
    return frames


def _environment(config: Config, trained: VecEnv) -> Environments:
    """Return the evaluation's first environment, with rendering enabled."""
    evaluation = settings(config, trained)
    each, uneven = divmod(trained.num_agents, trained.num_environments)
    alone = evaluation.vec.total_agents if uneven else each
    backend = evaluation.vec.backend
    backend = "sync" if backend == "async" else backend  # gives the same rows
    one = replace(evaluation, vec=replace(evaluation.vec, total_agents=alone, backend=backend))
    return vec.make(one, placement.rollout_cores(one), render=True)


def _frames(trainer: Trainer) -> list[Frame]:
    config = trainer.config
    with contextlib.closing(_environment(config, trainer.vec)) as environment:
        return episode(stepper_of(trainer, environment), drawing(config, environment))
