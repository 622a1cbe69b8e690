"""Videos of a run while it trains: ``base.eval_video_interval``.

After so many evaluations, and after the last, the policy plays one more episode in an environment
of its own: the first one of the evaluation, with its seed, drawn. It is a GIF, which trackers and
browsers show without further programs, in the run's folder: ``videos/STEP.gif``. All are kept.

Training doesn't notice: no environment and no random key is shared with it. A run that goes on
makes the videos of its epochs again, each in the place of the one before.
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
from puffer_mlx.playing.episodes import AgentStepper
from puffer_mlx.playing.evaluation import is_due, settings, stepper_of
from puffer_mlx.playing.frames import Draw, Frame, find_draw, fit, refuse_missing, write_gif
from puffer_mlx.training import placement
from puffer_mlx.training.epoch_logs import Logs
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments, VecEnv
from puffer_mlx.vec.normalize import Normalized
from puffer_mlx.vec.rows import allocate_rows

PICTURES = 300  # a long episode has so many to twice as many, all of the same distance
LONGEST = 10_000  # steps; what goes on is cut off
SIDE = 320  # pixels at most
FPS = 30.0


class EpisodeVideos:
    """Makes the videos of a trainer's run. Whatever fails, the run goes on.

    Args:
        trainer: whose weights; between two of its steps.
        folder: the run's.
        say: is told in a line why there is no video.

    Attributes:
        newest: the video of the last epoch, if there is one.
    """

    def __init__(self, trainer: Trainer, folder: Path, say: Callable[[str], object]) -> None:
        self._trainer, self._folder, self._say = trainer, folder / VIDEOS, say
        self.newest: Path | None = None

    def after_epoch(self) -> Logs:
        """Make a video if it is time to; what there is to add to the epoch's record."""
        trainer, self.newest = self._trainer, None
        if not video_is_due(trainer.config, trainer.epoch):
            return {}
        began = time.perf_counter()
        path = self._folder / f"{trainer.global_step:016d}.gif"
        try:
            write_gif(_frames(trainer), path, FPS)
            self.newest = path
        except Exception as error:  # an environment's too, which may be anything
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self._say(f"no video after {trainer.global_step:,} steps, the run goes on: {reason}")
        return {"perf/video": time.perf_counter() - began}


def video_is_due(config: Config, epoch: int) -> bool:
    """Whether there is a video after so many epochs: of the evaluations, and the last."""
    every, interval = config.base.eval_video_interval, config.base.eval_interval
    if not every or not is_due(config, epoch):
        return False
    before = min(epoch, epoch * config.batch_size // interval)  # evaluations, this one included
    return epoch == config.epochs or before % every == 0


def refuse_undrawable(config: Config, trained: VecEnv) -> None:
    """Refuse, before training, videos that can't be made: one picture is drawn.

    Args:
        config: of the run.
        trained: its environments.

    Raises:
        UserError: the environment can't be drawn, or a package is missing.
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
    """What makes the picture of a step: the environment itself, or its draw.py.

    Raises:
        UserError: there is none; later: it can't be drawn.
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
    """Pictures of agent 0 in its first episode, at least one, fewer than 2 ``PICTURES``.

    Of a long episode every second one, fourth one, …, which is known when it has got that long.

    Args:
        stepper: of environments, at their beginning. One is enough.
        draw: an observation's picture.
    """
    frames: list[Frame] = []
    distance, total = 1, 0.0
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
    """The evaluation's first environment, which can draw itself."""
    evaluation = settings(config, trained)
    each, uneven = divmod(trained.num_agents, trained.num_environments)
    alone = evaluation.vec.total_agents if uneven else each
    backend = evaluation.vec.backend
    backend = "sync" if backend == "async" else backend  # the same rows
    one = replace(evaluation, vec=replace(evaluation.vec, total_agents=alone, backend=backend))
    return vec.make(one, placement.rollout_cores(one), render=True)


def _frames(trainer: Trainer) -> list[Frame]:
    config = trainer.config
    with contextlib.closing(_environment(config, trainer.vec)) as environment:
        return episode(stepper_of(trainer, environment), drawing(config, environment))
