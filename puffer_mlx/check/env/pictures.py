"""Check an environment's pictures."""

from collections.abc import Callable

import numpy as np

from puffer_mlx import vec
from puffer_mlx.check.env.environment import EnvUnderTest, RandomRollout
from puffer_mlx.check.items import Findings, fail, ok, warn
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.frames import find_draw
from puffer_mlx.vec.base import VecEnv

STEPS = 20


def check_pictures(env: EnvUnderTest) -> Findings:
    """Check the pictures that ``puffer-mlx evaluate --gif`` would show."""
    if env.native:
        folder = vec.source_folder(env.config)
        if (folder / "draw.py").is_file():
            draw = find_draw(folder)
            with env.make() as environments:
                return _moving(environments, lambda rows: draw(rows.observations[0].copy()))
        if getattr(env.full, "can_render", False):
            return [ok("a window of its own, by raylib; no draw.py for --gif and --terminal")]
        hint = (
            "for puffer-mlx evaluate --gif and --terminal write draw(observation) -> picture"
            " (h, w, 3) uint8; envs/squared/draw.py is 20 lines"
        )
        return [warn("none: there is no draw.py", hint)]
    try:
        with vec.make(env.small_config(1), 1, render=True) as environments:
            return _moving(environments, lambda _: environments.render())  # pyright: ignore
    except (UserError, AttributeError) as error:
        reason = error.message if isinstance(error, UserError) else "it can't be drawn"
        hint = 'for puffer-mlx evaluate --gif offer render_mode "rgb_array" in Gymnasium\'s way'
        return [warn(f"none: {reason}", hint)]


def _moving(environments: VecEnv, draw: Callable) -> Findings:
    """Check that pictures of random steps have equal sizes and aren't all the same."""
    rollout = RandomRollout(environments)
    images = [draw(rollout.step()) for _ in range(STEPS)]
    first = images[0]
    if sizes := {image.shape for image in images} - {first.shape}:
        text = f"their size changes: {first.shape}, then {sizes.pop()}"
        return [fail(text, "draw all in one size")]
    size = f"{first.shape[1]} x {first.shape[0]} pixels"
    if all(np.array_equal(image, first) for image in images):
        text = f"{size}, all the same in {STEPS} steps"
        return [warn(text, "draw what the agent sees change")]
    return [ok(size)]
