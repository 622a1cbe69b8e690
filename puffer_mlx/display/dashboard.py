"""The display of a training run: a live dashboard in a terminal, plain lines elsewhere."""

import contextlib
import math
import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel

from puffer_mlx.display.bottleneck import Conditions, advice
from puffer_mlx.display.dashboard_layout import Picture
from puffer_mlx.display.run_view import RATING, RETURN, Logs, View, abbreviate
from puffer_mlx.system.signals import in_main_thread
from puffer_mlx.tracking.scores import METRIC, SCORE

INTERVAL = 0.6  # seconds between two plain lines at least, upstream's rhythm
FOLLOWING = 4  # lines that follow the last picture: what was saved, say, and the prompt
SILENT, SILENT_LINES = 1.0, 60.0  # seconds without a record until the current epoch is shown
FIRST = "The first epoch compiles kernels: seconds on a CPU, up to two minutes on a GPU."
REFRESH = 0.25  # seconds between two redraws at least
_LOCAL_FLAGS = 3  # where they are in what ``tcgetattr`` returns

LINE = {  # what a plain line shows besides scores
    RETURN: "return",
    "env/episode_length": "length",
    RATING: "elo",
    "loss/total": "loss",
    "loss/entropy": "entropy",
}


class Dashboard:
    """Shows a run; a context manager.

    Args:
        summary: Constant facts (name -> text), the environment first.
        total_steps: Environment steps of the entire run.
        console: Console to draw on; by default standard output.
        conditions: Options for the line "Why slow?"; None for no such line.
        in_progress: Returns a line about the current epoch, or "". Called by a thread of the
            dashboard while no record arrives.
        metric: Name of the number that ranks policies: ``Config.metric``.
    """

    def __init__(
        self,
        summary: dict[str, str],
        total_steps: int,
        console: Console | None = None,
        conditions: Conditions | None = None,
        in_progress: Callable[[], str] | None = None,
        metric: str = METRIC,
    ) -> None:
        self.view = View(summary, total_steps, metric)
        self._in_progress = in_progress
        self._over, self._lock = threading.Event(), threading.RLock()
        self._thread = threading.Thread(target=self._go_on, name="dashboard", daemon=True)
        self.conditions = conditions
        self.console = console or Console()
        self._live = (
            Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        )
        self._shown, self._drawn = float("-inf"), False
        self._size = self.console.size
        self._picture: RenderableType | None = None
        self._drawing = self._resized = False
        self._before: Any = None  # who minded the window's size
        self._terminal = contextlib.ExitStack()  # as it was before

    def __enter__(self) -> Self:
        if self._live:
            self._terminal.enter_context(control_keys_unshown())
            self._live.__enter__()
            self._draw(Panel(FIRST, border_style="cyan"))
            if hasattr(signal, "SIGWINCH") and in_main_thread():
                self._before = signal.signal(signal.SIGWINCH, self._on_resize)
        else:
            self.console.print(
                ", ".join(f"{k} {v}" for k, v in self.view.summary.items()), soft_wrap=True
            )
        self._shown = time.perf_counter()
        if self._in_progress:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if any(error):  # the error message is more important
            self.conditions = None
        if self._live:
            if self._before is not None and in_main_thread():
                signal.signal(signal.SIGWINCH, self._before)
            if self.view.logs:
                self._draw(Picture(self.view, self.why(), spare=FOLLOWING))
            self._live.__exit__(None, None, None)
            self._terminal.close()
        elif words := self.why():
            self.message(f"why slow? {words}")

    @property
    def live(self) -> bool:
        """True if it redraws a terminal, False if it prints lines."""
        return self._live is not None

    def update(self, logs: Logs, last: bool = False) -> None:
        """Take a record; draw if the last drawing is old enough, or if this is the last record."""
        with self._lock:
            self.view.take(logs)
            now = time.perf_counter()
            since = now - self._shown if self._drawn else math.inf
            if not last and since < (REFRESH if self._live else INTERVAL):
                return
            self._shown, self._drawn = now, True
            self.view.measure()
            if self._live:
                self._draw(self.render())
            else:
                self.console.print(self.line(), soft_wrap=True, highlight=False)

    def go_on(self) -> None:
        """Redraw during a long epoch."""
        waited = time.perf_counter() - self._shown
        if waited < (SILENT if self._live else SILENT_LINES) or not self._in_progress:
            return
        if not (text := self._in_progress()):
            return
        with self._lock:
            if not self._live:
                self._shown = time.perf_counter()
                self.message(text)
            elif self.view.logs:
                self._draw(Picture(self.view, self.why(), in_progress=text))
            else:
                self._draw(Panel(f"{FIRST}\n{text}", border_style="cyan"))

    def _go_on(self) -> None:
        while not self._over.wait(SILENT):
            self.go_on()

    def message(self, text: str) -> None:
        """Print a line above the dashboard."""
        with self._lock:
            self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def line(self) -> str:
        """One line for logs that aren't read live."""
        view, logs = self.view, self.view.logs
        parts = [
            f"{logs['agent_steps']:,.0f} of {view.total_steps:,} steps",
            f"{abbreviate(view.speed)} SPS",
            f"{view.left} left",
        ]
        parts += [f"{label} {value}" for label, value in view.scores().items()]
        main = view.score_name(logs)
        shown = {main, RETURN} if main == SCORE else {main}  # the return of fewer episodes
        for name, label in LINE.items():
            if name in logs and name not in shown:
                parts.append(f"{label} {logs[name]:.3f}")
        return " | ".join(parts)

    def why(self) -> str:
        """Return a hint on the slowest part; "" if it is unknown."""
        return advice(self.view.logs, self.conditions) if self.conditions else ""

    def render(self) -> Picture:
        """Return the picture, for a terminal of any size."""
        return Picture(self.view, self.why())

    def _draw(self, picture: RenderableType) -> None:
        """Replace the picture; if the window's size changed, clear the screen first.

        A terminal wraps the lines of a picture that became too wide, so their number is unknown.
        The screen is cleared line by line: some terminals keep a screen that is cleared at once.
        """
        with self._lock:
            assert self._live
            self._drawing, self._resized = True, False
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
            self._picture, self._drawing = picture, False
            if self._resized:
                self._draw(picture)

    def _on_resize(self, *_: object) -> None:
        """The window has another size: draw anew, now or when the present drawing is done."""
        self._resized = True
        if not self._drawing and self._picture:
            self._draw(self._picture)


# ---- Ctrl-C without its ^C -----------------------------------------------------------------------
#
# The terminal writes what it shows of control keys where the cursor is, behind the last character
# of what was drawn. In a picture as wide as the window that begins a new line, and the next drawing
# misses its first one.


@contextlib.contextmanager
def control_keys_unshown() -> Iterator[None]:
    """Disable the echo of control keys in standard input's terminal during a block."""
    shown = _set_shown(False)
    try:
        yield
    finally:
        if shown:
            _set_shown(True)


def _set_shown(shown: bool) -> bool:
    """Set the echo of control keys. Returns the previous value.

    A background process leaves the terminal unchanged: the kernel would stop the process.
    """
    try:
        terminal = sys.stdin.fileno()
        if os.tcgetpgrp(terminal) != os.getpgrp():
            return False
        modes = termios.tcgetattr(terminal)
        before = bool(modes[_LOCAL_FLAGS] & termios.ECHOCTL)
        modes[_LOCAL_FLAGS] &= ~termios.ECHOCTL
        modes[_LOCAL_FLAGS] |= termios.ECHOCTL if shown else 0
        termios.tcsetattr(terminal, termios.TCSANOW, modes)
        return before
    except (OSError, ValueError, AttributeError, termios.error):  # closed, or no terminal
        return False
