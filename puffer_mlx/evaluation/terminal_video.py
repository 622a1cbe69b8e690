"""Show pictures in a terminal, two pixels per character, one above the other.

The output is coloured text, so it works through ssh. Terminals with fewer colours show the nearest.
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
from puffer_mlx.evaluation.frames import Frame, fit

UPPER = "▀"  # upper half in the foreground colour, lower half in the background colour


@lru_cache(1 << 14)
def _style(upper: tuple[int, int, int], lower: tuple[int, int, int] | None) -> Style:
    """Return the colours of a character. Without a lower pixel the background stays."""
    return Style(
        color=Color.from_rgb(*upper), bgcolor=None if lower is None else Color.from_rgb(*lower)
    )


class HalfBlocks:
    """Render a picture below a line of text with rich, as large as the window allows.

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
        pixels = fit(self.image, 2 * max(1, lines - 1), columns).tolist()
        for y in range(0, len(pixels), 2):
            upper = [tuple(pixel) for pixel in pixels[y]]
            lower = [tuple(pixel) for pixel in pixels[y + 1]] if y + 1 < len(pixels) else None
            yield Segment.line()
            for colours, cells in groupby(zip(upper, lower or [None] * len(upper), strict=True)):
                yield Segment(UPPER * len(list(cells)), _style(*colours))


def caption(frame: Frame, first: int) -> str:
    """Return a caption with the episode, its return and its step.

    Args:
        frame: Frame.
        first: Step at which the episode began.
    """
    end = " ended" if frame.terminal else ""
    episode = frame.episode - frame.terminal  # episode that `total` belongs to
    step = frame.step - first
    return f"episode {episode + 1}{end}   return {frame.total:g}   step {step:,}   Ctrl-C quits"


def play_in_terminal(frames: Iterable[Frame], fps: float, console: Console | None = None) -> None:
    """Show frames on the terminal's alternate screen until they end or Ctrl-C; print a summary.

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
    first = 0  # step at which the episode began
    live = Live(console=console, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), live:
        due = time.perf_counter()
        for frame in frames:
            time.sleep(max(0.0, due - time.perf_counter()))
            live.update(HalfBlocks(frame.image, caption(frame, first)), refresh=True)
            if frame.terminal:
                returns.append(frame.total)
                first = frame.step
            due = max(due, time.perf_counter() - 1 / fps) + 1 / fps
    if returns:
        mean = sum(returns) / len(returns)
        console.print(f"episodes {len(returns):,}, mean return {mean:.3f}", highlight=False)
    else:
        console.print("no episode ended", highlight=False)
