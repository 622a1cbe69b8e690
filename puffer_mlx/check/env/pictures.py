"""Item that checks an environment's pictures."""

from collections.abc import Callable

import numpy as np

from puffer_mlx import vec
from puffer_mlx.check.env.findings import Findings, fail, ok, warn
from puffer_mlx.check.env.random_play import Table
from puffer_mlx.check.env.subject import Subject
from puffer_mlx.errors import UserError
from puffer_mlx.playing.frames import find_draw
from puffer_mlx.vec.base import VecEnv

STEPS = 20


def drawn(subject: Subject) -> Findings:
    """Check the pictures that ``evaluate.py --gif`` would show."""
    yield from _native(subject) if subject.native else _python(subject)


def _native(subject: Subject) -> Findings:
    folder = vec.source_folder(subject.config)
    if (folder / "draw.py").is_file():
        draw = find_draw(folder)
        with subject.make() as environments:
            images = _images(environments, lambda table: draw(table.rows.observations[0].copy()))
        yield from _moving(images)
    elif subject.whole.can_render:
        yield ok("a window of its own, by raylib; no draw.py for --gif and --terminal")
    else:
        yield warn(
            "none: there is no draw.py",
            "for evaluate.py --gif and --terminal write draw(observation) -> picture"
            " (h, w, 3) uint8; envs/squared/draw.py is 20 lines",
        )


def _python(subject: Subject) -> Findings:
    try:
        with vec.make(subject.few(1), 1, render=True) as environments:
            images = _images(environments, lambda _: environments.render())  # pyright: ignore
    except (UserError, AttributeError) as error:
        reason = error.message if isinstance(error, UserError) else "it can't be drawn"
        hint = 'for evaluate.py --gif offer render_mode "rgb_array" in Gymnasium\'s way'
        yield warn(f"none: {reason}", hint)
        return
    yield from _moving(images)


def _images(environments: VecEnv, look: Callable[[Table], np.ndarray]) -> list[np.ndarray]:
    """Return pictures of steps with random actions."""
    rng, table = np.random.default_rng(0), Table(environments)
    images = []
    for _ in range(STEPS):
        table.step(table.legal(rng))
        images.append(look(table))
    return images


def _moving(images: list[np.ndarray]) -> Findings:
    """Check that pictures have equal sizes and aren't all the same."""
    if sizes := {image.shape for image in images} - {images[0].shape}:
        yield fail(
            f"their size changes: {images[0].shape}, then {sizes.pop()}", "draw all in one size"
        )
        return
    h, w = images[0].shape[:2]
    if all(np.array_equal(image, images[0]) for image in images):
        yield warn(
            f"{w} x {h} pixels, all the same in {STEPS} steps", "draw what the agent sees change"
        )
    else:
        yield ok(f"{w} x {h} pixels")
