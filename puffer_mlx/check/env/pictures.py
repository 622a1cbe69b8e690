"""Item: whether there is something to look at."""

import numpy as np

from puffer_mlx import vec
from puffer_mlx.check.env.findings import Findings, fail, ok, warn
from puffer_mlx.check.env.subject import Subject, Table
from puffer_mlx.display.frames import find_draw
from puffer_mlx.errors import UserError

STEPS = 20


def drawn(subject: Subject) -> Findings:
    """What ``evaluate.py --gif`` would show."""
    yield from _native(subject) if subject.native else _python(subject)


def _native(subject: Subject) -> Findings:
    folder = vec.source_folder(subject.config)
    if not (folder / "draw.py").is_file():
        if subject.whole.can_render:
            yield ok("a window of its own, by raylib; no draw.py for --gif and --terminal")
        else:
            yield warn(
                "none: there is no draw.py",
                "for evaluate.py --gif and --terminal write draw(observation) -> picture"
                " (h, w, 3) uint8; envs/squared/draw.py is 20 lines",
            )
        return
    draw, rng, images = find_draw(folder), np.random.default_rng(0), []
    with subject.make() as made:
        table = Table(made)
        for _ in range(STEPS):
            table.step(table.legal(rng))
            images.append(draw(table.rows.observations[0].copy()))
    yield from _moving(images)


def _python(subject: Subject) -> Findings:
    rng, images = np.random.default_rng(0), []
    try:
        with vec.make(subject.few(1), 1, render=True) as made:
            table = Table(made)
            for _ in range(STEPS):
                table.step(table.legal(rng))
                images.append(made.render())  # pyright: ignore[reportAttributeAccessIssue]
    except (UserError, AttributeError) as error:
        said = error.message if isinstance(error, UserError) else "it can't be drawn"
        yield warn(
            f"none: {said}",
            'for evaluate.py --gif offer render_mode "rgb_array" in Gymnasium\'s way',
        )
        return
    yield from _moving(images)


def _moving(images: list[np.ndarray]) -> Findings:
    """Pictures of one size, not all the same."""
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
