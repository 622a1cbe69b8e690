"""Pictures in a terminal: every character shows two pixels, one above the other.

Plain text with colours, so it works through ssh; a terminal with fewer colours gets the nearest.
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
from puffer_mlx.playing.frames import Frame, fit

UPPER = "▀"  # the upper half in the foreground's colour, the lower in the background's


@lru_cache(1 << 14)
def _style(upper: tuple[int, int, int], lower: tuple[int, int, int] | None) -> Style:
    """The colours of a character; without a lower pixel the terminal's own background."""
    return Style(
        color=Color.from_rgb(*upper), bgcolor=None if lower is None else Color.from_rgb(*lower)
    )


class HalfBlocks:
    """A picture under a line of text, as large as the window allows; for rich.

    Args:
        image: (h, w, 3) uint8.
        caption: cut off where the window ends.
    """

    def __init__(self, image: np.ndarray, caption: str) -> None:
        self.image, self.caption = image, caption

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


def caption(frame: Frame) -> str:
    """What happened, as a line."""
    end = " ended" if frame.terminal else ""
    episode = frame.episode - frame.terminal  # the one whose total it is
    return f"episode {episode + 1}{end}   return {frame.total:g}   step {frame.step:,}"


def play_in_terminal(frames: Iterable[Frame], fps: float, console: Console | None = None) -> None:
    """Show frames on the terminal's second screen, until they end or Ctrl-C.

    Args:
        frames: taken one by one, none earlier than it is shown.
        fps: pictures per second; fewer where drawing takes longer.
        console: where to draw; standard output if None.

    Raises:
        UserError: there is no terminal.
    """
    console = console or Console()
    if not console.is_terminal:
        raise UserError(
            "--terminal: the output is not a terminal",
            "run it in one, or write a file: --gif FILE or --mp4 FILE",
        )
    live = Live(console=console, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), live:
        due = time.perf_counter()
        for frame in frames:
            time.sleep(max(0.0, due - time.perf_counter()))
            live.update(HalfBlocks(frame.image, caption(frame)), refresh=True)
            due = max(due, time.perf_counter() - 1 / fps) + 1 / fps
