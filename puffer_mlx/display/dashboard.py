"""Show a training run: a live dashboard in a terminal, or plain lines of text."""

import contextlib
import math
import os
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel

from puffer_mlx.display.bottleneck import PerfContext, find_bottleneck
from puffer_mlx.display.dashboard_layout import NO_EPISODE_TEXT, DashboardPicture
from puffer_mlx.display.run_view import RATING_KEY, RETURN_KEY, Record, RunState, format_count
from puffer_mlx.system import verbosity
from puffer_mlx.tracking.scores import DEFAULT_METRIC, MEAN_SCORE

LINE_INTERVAL = 0.6  # minimum seconds between two plain lines, as in PufferLib
LINES_BELOW = 11  # lines kept free below the last picture: result, next steps and prompt
# Seconds without a record after which the progress of the epoch is shown.
SILENT_SECONDS = 1.0  # in a terminal
SILENT_LINE_SECONDS = 60.0  # as plain lines
FIRST_EPOCH_TEXT = "The first epoch compiles kernels: seconds on a CPU, up to two minutes on a GPU."
REDRAW_INTERVAL = 0.25  # minimum seconds between two redraws
LENGTH_KEY = "env/episode_length"
_LOCAL_FLAGS = 3  # index in the result of ``tcgetattr``

LINE_LABELS = {  # labels in a plain line, by key of a record; scores have other labels
    RETURN_KEY: "return",
    LENGTH_KEY: "length",
    RATING_KEY: "elo",
    "loss/total": "loss",
    "loss/entropy": "entropy",
}


class Dashboard:
    """Show a training run in a terminal or as plain lines. Use it as a context manager.

    Args:
        summary: Constant facts (name -> text), the environment first.
        total_steps: Environment steps of the entire run.
        console: Console to draw on; by default standard output.
        context: Options of the run for the hint on its speed; None for no hint.
        in_progress: Returns a line about the current epoch, or "". A thread of the dashboard calls
            it while no record arrives.
        metric: Name of the value that ranks policies: ``Config.metric``.
    """

    def __init__(
        self,
        summary: dict[str, str],
        total_steps: int,
        console: Console | None = None,
        context: PerfContext | None = None,
        in_progress: Callable[[], str] | None = None,
        metric: str = DEFAULT_METRIC,
    ) -> None:
        self.run = RunState(summary, total_steps, metric)
        self._in_progress = in_progress
        self._stopped = threading.Event()
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._refresh_loop, name="dashboard", daemon=True)
        self._context = context
        self.console = console or Console()
        self._live = None
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False)
        self._last_draw_time = -math.inf
        self._has_drawn = False  # a record has been shown
        self._size = self.console.size
        self._terminal = contextlib.ExitStack()  # restores the terminal

    def __enter__(self) -> Self:
        if self._live:
            self._terminal.enter_context(disable_echo())
            self._live.__enter__()
            self._draw(Panel(FIRST_EPOCH_TEXT, border_style="cyan"))
        else:
            facts = ", ".join(f"{name} {text}" for name, text in self.run.summary.items())
            self.console.print(facts, soft_wrap=True)
        self._last_draw_time = time.perf_counter()
        if self._live or self._in_progress:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        if any(error):  # no hint beside an error message
            self._context = None
        if self._live:
            if self.run.logs:
                self._draw(self.picture(spare=LINES_BELOW))
            self._live.__exit__(None, None, None)
            self._terminal.close()
        elif hint := self.bottleneck_hint():
            self.message(f"why slow? {hint}")

    @property
    def live(self) -> bool:
        """True if the dashboard redraws a terminal, False if it prints lines."""
        return self._live is not None

    def update(self, logs: Record, last: bool = False) -> None:
        """Add a record of the run to the dashboard, and redraw unless it was redrawn very recently.

        Args:
            logs: Record of an epoch or an evaluation.
            last: True to draw in any case.
        """
        with self._lock:
            self.run.update(logs)
            now = time.perf_counter()
            since = now - self._last_draw_time if self._has_drawn else math.inf
            if not last and since < (REDRAW_INTERVAL if self._live else LINE_INTERVAL):
                return
            self._last_draw_time = now
            self._has_drawn = True
            self.run.update_speed()
            if self._live:
                self._draw(self.picture())
            else:
                self.console.print(self.line(), soft_wrap=True, highlight=False)

    def refresh(self) -> None:
        """Redraw the dashboard if the window was resized, and show the progress of a long epoch."""
        waited = time.perf_counter() - self._last_draw_time
        text = ""
        if self._in_progress and waited >= (SILENT_SECONDS if self._live else SILENT_LINE_SECONDS):
            text = self._in_progress()
        with self._lock:
            if self._live and (text or self.console.size != self._size):
                if self.run.logs:
                    self._draw(self.picture(in_progress=text))
                else:
                    first_epoch = f"{FIRST_EPOCH_TEXT}\n{text}".rstrip()
                    self._draw(Panel(first_epoch, border_style="cyan"))
            elif text:
                self._last_draw_time = time.perf_counter()
                self.message(text)

    def _refresh_loop(self) -> None:
        while not self._stopped.wait(SILENT_SECONDS):
            self.refresh()

    def message(self, text: str) -> None:
        """Print text above the dashboard."""
        if self.console.is_terminal:
            text = "\n".join(verbosity.wrap(line, self.console.width) for line in text.splitlines())
        with self._lock:
            self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def line(self) -> str:
        """Return the state of the training run (steps, speed, score, loss) as one line of text."""
        run = self.run
        logs = self.run.logs
        fields = [f"{logs['agent_steps']:,.0f} of {run.total_steps:,} steps"]
        if run.speed:
            fields += [f"{format_count(run.speed)} SPS", f"{run.time_left} left"]
        score_key = run.score_name(logs)
        fields += [f"{label} {value}" for label, value in run.scores().items()]
        if not score_key:
            fields.append(NO_EPISODE_TEXT)
        hidden = {score_key}
        if (
            score_key == MEAN_SCORE
        ):  # return and length are means over fewer episodes than the score
            hidden |= {RETURN_KEY, LENGTH_KEY}
        for name, label in LINE_LABELS.items():
            if name in logs and name not in hidden:
                fields.append(f"{label} {logs[name]:.3f}")
        return " | ".join(fields)

    def bottleneck_hint(self) -> str:
        """Return a hint on how to speed up the run, or an empty string."""
        return find_bottleneck(self.run.logs, self._context) if self._context else ""

    def picture(self, spare: int = 0, in_progress: str = "") -> DashboardPicture:
        """Return the dashboard's current picture of the run, which fits a terminal of any size.

        Args:
            spare: Lines of the terminal that stay free.
            in_progress: Line about the current epoch, or "".
        """
        return DashboardPicture(self.run, self.bottleneck_hint(), spare, in_progress)

    def _draw(self, picture: RenderableType) -> None:
        """Show a new picture of the run in the terminal in place of the old one.

        If the window's size changed, the screen is cleared first, because the terminal may have
        wrapped lines of the old picture. It is cleared line by line. If it were cleared at once,
        some terminals would keep its content among the scrolled lines.
        """
        with self._lock:
            assert self._live
            size = self.console.size
            if size != self._size:
                self._live.transient = True
                self._live.stop()
                rows = range(size.height, 0, -1)
                self.console.file.write("".join(f"\x1b[{row};1H\x1b[2K" for row in rows))
                self._live = Live(console=self.console, auto_refresh=False)
                self._live.start()
                self._size = size
            self._live.update(picture, refresh=True)


# ---- no echo of ^C -------------------------------------------------------------------------------
#
# The terminal echoes control keys at the cursor, after the last character of the picture. If the
# picture is as wide as the window, the echo starts a new line, and the next drawing is misplaced.


@contextlib.contextmanager
def disable_echo() -> Iterator[None]:
    """Disable the terminal's echo of control keys, such as ^C, in a ``with`` block."""
    enabled = _set_echo(False)
    try:
        yield
    finally:
        if enabled:
            _set_echo(True)


def _set_echo(enabled: bool) -> bool:
    """Enable or disable the terminal's echo of control keys. Returns the previous setting.

    In a background process nothing is changed, because the kernel would stop the process.
    """
    try:
        terminal = sys.stdin.fileno()
        if os.tcgetpgrp(terminal) != os.getpgrp():
            return False
        modes = termios.tcgetattr(terminal)
        was_enabled = bool(modes[_LOCAL_FLAGS] & termios.ECHOCTL)
        modes[_LOCAL_FLAGS] &= ~termios.ECHOCTL
        modes[_LOCAL_FLAGS] |= termios.ECHOCTL if enabled else 0
        termios.tcsetattr(terminal, termios.TCSANOW, modes)
        return was_enabled
    except (OSError, ValueError, AttributeError, termios.error):  # closed, or no terminal
        return False
