"""Show a video in a terminal as coloured text, with two pixels per character.

This works through ssh. Terminals with few colours show the nearest colour.
"""

import contextlib
import time
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby

import numpy as np
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style

from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.frames import Frame, fit_picture

UPPER_HALF = "▀"  # upper half in the foreground colour, lower half in the background colour


@lru_cache(1 << 14)
def _style(upper: tuple[int, int, int], lower: tuple[int, int, int] | None) -> Style:
    """Return the terminal colours of a character that shows a pixel above another, or one pixel."""
    return Style(
        color=Color.from_rgb(*upper), bgcolor=None if lower is None else Color.from_rgb(*lower)
    )


class HalfBlocks:
    """A picture below a line of text, which rich renders as large as the window allows.

    Args:
        image: Picture, (h, w, 3) uint8.
        caption: Line of text, cut off at the window's width.
    """

    def __init__(self, image: np.ndarray, caption: str) -> None:
        self.image = image
        self.caption = caption

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, lines = options.max_width, options.height or console.height
        yield Segment(self.caption)
        pixels = fit_picture(self.image, 2 * max(1, lines - 1), columns).tolist()
        for y in range(0, len(pixels), 2):
            upper = [tuple(pixel) for pixel in pixels[y]]
            lower = [tuple(pixel) for pixel in pixels[y + 1]] if y + 1 < len(pixels) else None
            yield Segment.line()
            for colours, cells in groupby(zip(upper, lower or [None] * len(upper), strict=True)):
                yield Segment(UPPER_HALF * len(list(cells)), _style(*colours))


def caption(frame: Frame, first_step: int) -> str:
    """Return the caption of a frame: the episode's number and return, and the step in the episode.

    Args:
        frame: Frame to describe.
        first_step: Step at which the episode began.
    """
    end = " ended" if frame.terminal else ""
    # At a terminal, `total` is the return of the episode before `episode`.
    episode = frame.episode - 1 if frame.terminal else frame.episode
    step = frame.step - first_step
    return f"episode {episode + 1}{end}   return {frame.total:g}   step {step:,}   Ctrl-C quits"


def play_in_terminal(frames: Iterable[Frame], fps: float, console: Console | None = None) -> None:
    """Show frames in the terminal until the last one or Ctrl-C, then print a summary.

    Args:
        frames: Frames, each created shortly before it is shown.
        fps: Pictures per second, or fewer if drawing is slower.
        console: Console to draw on. None: standard output.

    Raises:
        UserError: If the output isn't a terminal.
    """
    console = console or Console()
    if not console.is_terminal:
        raise UserError(
            "--terminal: the output is not a terminal",
            "run it in one, or write a file: --gif FILE or --mp4 FILE",
        )
    returns: list[float] = []
    first_step = 0  # step at which the episode began
    live = Live(console=console, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), live:
        due = time.perf_counter()
        for frame in frames:
            time.sleep(max(0.0, due - time.perf_counter()))
            live.update(HalfBlocks(frame.image, caption(frame, first_step)), refresh=True)
            if frame.terminal:
                returns.append(frame.total)
                first_step = frame.step
            due = max(due + 1 / fps, time.perf_counter())  # late frames aren't made up for
    if returns:
        mean = sum(returns) / len(returns)
        console.print(f"episodes {len(returns):,}, mean return {mean:.3f}", highlight=False)
    else:
        console.print("no episode ended", highlight=False)
