"""The display of a training run: a live dashboard in a terminal, plain lines elsewhere."""

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
from puffer_mlx.display.dashboard_layout import NONE_ENDED, Picture
from puffer_mlx.display.run_view import RATING, RETURN, Logs, RunState, abbreviate
from puffer_mlx.system import verbosity
from puffer_mlx.tracking.scores import METRIC, SCORE

INTERVAL = 0.6  # minimum seconds between two plain lines, as in PufferLib
FOLLOWING = 11  # lines below the last picture, for the result, the next steps and the prompt
SILENT, SILENT_LINES = 1.0, 60.0  # seconds without a record until the current epoch is shown
FIRST = "The first epoch compiles kernels: seconds on a CPU, up to two minutes on a GPU."
REFRESH = 0.25  # minimum seconds between two redraws
LENGTH = "env/episode_length"
_LOCAL_FLAGS = 3  # index in the result of ``tcgetattr``

LINE = {  # numbers of a plain line besides scores
    RETURN: "return",
    LENGTH: "length",
    RATING: "elo",
    "loss/total": "loss",
    "loss/entropy": "entropy",
}


class Dashboard:
    """Show a run. Use it as a context manager.

    Args:
        summary: Constant facts (name -> text), the environment first.
        total_steps: Environment steps of the entire run.
        console: Console to draw on; by default standard output.
        context: Options for the hint on the bottleneck; None for no hint.
        in_progress: Returns a line about the current epoch, or "". Called by a thread of the
            dashboard while no record arrives.
        metric: Name of the number that ranks policies: ``Config.metric``.
    """

    def __init__(
        self,
        summary: dict[str, str],
        total_steps: int,
        console: Console | None = None,
        context: PerfContext | None = None,
        in_progress: Callable[[], str] | None = None,
        metric: str = METRIC,
    ) -> None:
        self.run = RunState(summary, total_steps, metric)
        self._in_progress = in_progress
        self._over = threading.Event()
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._refresh_loop, name="dashboard", daemon=True)
        self._context = context
        self.console = console or Console()
        self._live = None
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False)
        self._shown = -math.inf  # time of the last drawing
        self._drawn = False
        self._size = self.console.size
        self._terminal = contextlib.ExitStack()  # restores the terminal

    def __enter__(self) -> Self:
        if self._live:
            self._terminal.enter_context(disable_echo())
            self._live.__enter__()
            self._draw(Panel(FIRST, border_style="cyan"))
        else:
            facts = ", ".join(f"{name} {text}" for name, text in self.run.summary.items())
            self.console.print(facts, soft_wrap=True)
        self._shown = time.perf_counter()
        if self._live or self._in_progress:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if any(error):  # the error message is more important
            self._context = None
        if self._live:
            if self.run.logs:
                self._draw(self.picture(spare=FOLLOWING))
            self._live.__exit__(None, None, None)
            self._terminal.close()
        elif hint := self.bottleneck_hint():
            self.message(f"why slow? {hint}")

    @property
    def live(self) -> bool:
        """True if it redraws a terminal, False if it prints lines."""
        return self._live is not None

    def update(self, logs: Logs, last: bool = False) -> None:
        """Add a record; draw if the last drawing is old enough, or if this is the last record."""
        with self._lock:
            self.run.update(logs)
            now = time.perf_counter()
            since = now - self._shown if self._drawn else math.inf
            if not last and since < (REFRESH if self._live else INTERVAL):
                return
            self._shown = now
            self._drawn = True
            self.run.update_speed()
            if self._live:
                self._draw(self.picture())
            else:
                self.console.print(self.line(), soft_wrap=True, highlight=False)

    def refresh(self) -> None:
        """Redraw during a long epoch and after the window was resized."""
        waited = time.perf_counter() - self._shown
        text = ""
        if self._in_progress and waited >= (SILENT if self._live else SILENT_LINES):
            text = self._in_progress()
        with self._lock:
            if self._live and (text or self.console.size != self._size):
                started = Panel(f"{FIRST}\n{text}".rstrip(), border_style="cyan")
                self._draw(self.picture(in_progress=text) if self.run.logs else started)
            elif text:
                self._shown = time.perf_counter()
                self.message(text)

    def _refresh_loop(self) -> None:
        while not self._over.wait(SILENT):
            self.refresh()

    def message(self, text: str) -> None:
        """Print a line above the dashboard."""
        if self.console.is_terminal:
            text = "\n".join(verbosity.wrap(line, self.console.width) for line in text.splitlines())
        with self._lock:
            self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def line(self) -> str:
        """Return one line for logs that aren't read live."""
        run = self.run
        logs = self.run.logs
        parts = [f"{logs['agent_steps']:,.0f} of {run.total_steps:,} steps"]
        if run.speed:
            parts += [f"{abbreviate(run.speed)} SPS", f"{run.time_left} left"]
        main = run.score_name(logs)
        parts += [f"{label} {value}" for label, value in run.scores().items()]
        parts += [] if main else [NONE_ENDED]
        hidden = {main, RETURN, LENGTH} if main == SCORE else {main}  # those are of fewer episodes
        for name, label in LINE.items():
            if name in logs and name not in hidden:
                parts.append(f"{label} {logs[name]:.3f}")
        return " | ".join(parts)

    def bottleneck_hint(self) -> str:
        """Return a hint on the slowest part; "" if it is unknown."""
        return find_bottleneck(self.run.logs, self._context) if self._context else ""

    def picture(self, spare: int = 0, in_progress: str = "") -> Picture:
        """Return the picture, for a terminal of any size; arguments as in ``Picture``."""
        return Picture(self.run, self.bottleneck_hint(), spare, in_progress)

    def _draw(self, picture: RenderableType) -> None:
        """Replace the picture; if the window's size changed, clear the screen first.

        A terminal wraps the lines of a picture that became too wide, so their number is unknown.
        The screen is cleared line by line: some terminals keep a screen that is cleared at once.
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


# ---- Ctrl-C without its ^C -----------------------------------------------------------------------
#
# The terminal echoes control keys at the cursor, after the last character of the picture. If the
# picture is as wide as the window, the echo starts a new line, and the next drawing is misplaced.


@contextlib.contextmanager
def disable_echo() -> Iterator[None]:
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
