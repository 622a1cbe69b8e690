"""Check the pictures that an environment draws."""

from collections.abc import Callable

import numpy as np

from puffer_mlx import vec
from puffer_mlx.check.env.environment import EnvUnderTest, RandomRollout
from puffer_mlx.check.items import Findings, fail, ok, warn
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.frames import find_draw
from puffer_mlx.vec.base import VecEnv

DRAWN_STEPS = 20


def check_pictures(env: EnvUnderTest) -> Findings:
    """Check that an environment draws the pictures that ``puffer-mlx evaluate --gif`` needs."""
    if env.native:
        folder = vec.source_folder(env.config)
        if (folder / "draw.py").is_file():
            draw = find_draw(folder)
            with env.make() as environments:
                return _check_images(environments, lambda rows: draw(rows.observations[0].copy()))
        if getattr(env.full, "can_render", False):
            return [ok("drawn in a raylib window; no draw.py for --gif and --terminal")]
        hint = (
            "for puffer-mlx evaluate --gif and --terminal, write draw(observation) -> picture"
            " (h, w, 3) uint8. envs/squared/draw.py is an example"
        )
        return [warn("none: there is no draw.py", hint)]
    try:
        with vec.make(env.small_config(1), 1, render=True) as environments:
            return _check_images(environments, lambda _: environments.render())  # pyright: ignore
    except (UserError, AttributeError) as error:
        reason = error.message if isinstance(error, UserError) else "the environment can't be drawn"
        hint = 'for puffer-mlx evaluate --gif, support Gymnasium\'s render_mode "rgb_array"'
        return [warn(f"none: {reason}", hint)]


def _check_images(environments: VecEnv, draw: Callable) -> Findings:
    """Check that pictures of an environment have equal sizes and change when it is played."""
    rollout = RandomRollout(environments)
    images = [draw(rollout.step()) for _ in range(DRAWN_STEPS)]
    first_image = images[0]
    if sizes := {image.shape for image in images} - {first_image.shape}:
        text = f"their size changes: {first_image.shape}, then {sizes.pop()}"
        return [fail(text, "draw all pictures in one size")]
    size = f"{first_image.shape[1]} x {first_image.shape[0]} pixels"
    if all(np.array_equal(image, first_image) for image in images):
        text = f"{size}, all the same in {DRAWN_STEPS} steps"
        return [warn(text, "draw the values that change in the observations")]
    return [ok(size)]
