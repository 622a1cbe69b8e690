"""What ``evaluate.py`` gives: scores as a table and as JSON; files, a terminal, a window."""

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from puffer_mlx.cli.evaluate_options import STEPS
from puffer_mlx.cli.evaluated_policy import Player, environments
from puffer_mlx.errors import UserError
from puffer_mlx.playing import frames
from puffer_mlx.playing.episodes import Scores, frames_of
from puffer_mlx.playing.terminal_video import play_in_terminal
from puffer_mlx.vec.base import Environments
from puffer_mlx.vec.normalize import Normalized

NOTHING = np.zeros((1, 1, 3), np.uint8)  # the picture of what is seen elsewhere


def report(player: Player, options: argparse.Namespace, scores: Scores) -> str:
    """The scores as a table."""
    how = "greedy" if options.greedy else "stochastic"
    lines = [
        f"{player.config.env_name}: {scores.count:,} episodes, {scores.each} from each of"
        f" {scores.environments} environments; {how}, seed {player.config.base.seed};"
        f" {scores.steps:,} steps, {scores.seconds:.1f} s"
    ]
    if summary := scores.summary():
        lines.append(f"{'':24}" + "".join(f"{n:>12}" for n in next(iter(summary.values()))._fields))
        for name, spread in summary.items():
            lines.append(f"{name:24}" + "".join(f"{value:12,.3f}" for value in spread))
    if scores.unfinished:
        lines.append(
            f"{scores.unfinished} of {scores.environments} environments had not ended their"
            f" episodes after {scores.steps:,} steps (--max-steps): long episodes are missing"
        )
    return "\n".join(lines)


def record(player: Player, options: argparse.Namespace, scores: Scores) -> dict[str, Any]:
    """The scores as JSON."""
    return {
        "environment": player.config.env_name,
        "policy": options.load_model_path,
        "greedy": options.greedy,
        "seed": player.config.base.seed,
        "steps": scores.steps,
        "unfinished": scores.unfinished,
        "summary": {name: spread._asdict() for name, spread in scores.summary().items()},
        "episodes": scores.episodes,
    }


def show(player: Player, options: argparse.Namespace, draw: frames.Draw | None) -> None:
    """Write the files asked for, and play in the terminal or in a window."""

    def played(steps: int | None, window: bool = False) -> Iterator[frames.Frame]:
        with environments(player, 1, render=True) as envs:
            yield from frames_of(
                player.policy,
                player.weights,
                envs,
                drawing(envs, None if window else draw, window),
                seed=player.config.base.seed,
                greedy=options.greedy,
                steps=steps,
            )

    for path, write in ((options.gif, frames.write_gif), (options.mp4, frames.write_mp4)):
        if path:
            write(played(options.steps or STEPS), path, options.fps, options.scale or 1)
            print(f"wrote {path}, {path.stat().st_size / 1000:,.0f} kB")
    if options.terminal:
        play_in_terminal(played(options.steps), options.fps)
    if options.window:
        with contextlib.suppress(WindowClosed):
            for _ in played(options.steps, window=True):
                pass  # the environment's c_render keeps the time


class WindowClosed(Exception):
    """By the person who watched."""


def drawing(envs: Environments, draw: frames.Draw | None, window: bool) -> frames.Draw:
    """What makes the picture of a step: the environment itself, or its draw.py."""

    def drawn(_: np.ndarray) -> np.ndarray:
        image = envs.render()
        if image is False:
            raise WindowClosed
        if isinstance(image, bool) and window:
            return NOTHING
        if isinstance(image, bool) or window:
            what = "in a window of its own" if isinstance(image, bool) else "pictures, no window"
            hint = "--window" if isinstance(image, bool) else "--terminal, --gif or --mp4"
            raise UserError(f"{envs.spec.name} draws {what}", hint)
        return image

    if draw is None:
        return drawn
    if isinstance(envs, Normalized):
        return lambda observation: draw(envs.raw(observation))
    return draw
