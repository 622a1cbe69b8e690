"""What a person sees while training: a live dashboard in a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterable
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from puffer_mlx.advice import Setting, advice
from puffer_mlx.view import PHASES, Logs, View, abbreviate, duration

__all__ = ["PHASES", "Dashboard", "Setting", "abbreviate", "duration"]

INTERVAL = 0.6  # seconds between two plain lines at least, upstream's rhythm
FRAME = 3  # lines of the picture besides phases and what is below: a border, a title, a border
REFRESH = 0.25  # seconds between two redraws at least

LINE = {  # what a plain line shows
    "env/score": "score",
    "env/episode_return": "return",
    "env/episode_length": "length",
    "loss/total": "loss",
    "loss/entropy": "entropy",
}


class Dashboard:
    """Shows a run; a context manager.

    Args:
        summary: facts that don't change (name -> text), environment first.
        total_steps: when the run will be done.
        console: where to draw; standard output if None.
        setting: what the line "Why slow?" is advised from; without it there is no such line.
    """

    def __init__(
        self,
        summary: dict[str, str],
        total_steps: int,
        console: Console | None = None,
        setting: Setting | None = None,
    ) -> None:
        self.view = View(summary, total_steps)
        self.setting = setting
        self.console = console or Console()
        self._live = (
            Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        )
        self._shown = float("-inf")

    def __enter__(self) -> Self:
        if self._live:
            self._live.__enter__()
            words = (
                "The first epoch compiles kernels: seconds on a CPU, up to two minutes on a GPU."
            )
            self._live.update(Panel(words, border_style="cyan"), refresh=True)
        else:
            self.console.print(
                ", ".join(f"{k} {v}" for k, v in self.view.summary.items()), soft_wrap=True
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            if self.view.logs:
                self._live.update(self.render(), refresh=True)
            self._live.__exit__(None, None, None)
        elif words := self.why():
            self.message(f"why slow? {words}")

    @property
    def live(self) -> bool:
        """Whether it redraws a terminal; else it prints lines."""
        return self._live is not None

    def update(self, logs: Logs, last: bool = False) -> None:
        """Take a record; draw if the last drawing is old enough, or if this is the last record."""
        self.view.take(logs)
        now = time.perf_counter()
        if not last and now - self._shown < (REFRESH if self._live else INTERVAL):
            return
        self._shown = now
        self.view.measure()
        if self._live:
            self._live.update(self.render(), refresh=True)
        else:
            self.console.print(self.line(), soft_wrap=True, highlight=False)

    def message(self, text: str) -> None:
        """Print a line above the dashboard."""
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def line(self) -> str:
        """One line for logs that aren't read live."""
        view, logs = self.view, self.view.logs
        parts = [
            f"{logs['agent_steps']:,.0f} of {view.total_steps:,} steps",
            f"{abbreviate(view.speed)} SPS",
            f"{view.left} left",
        ]
        for name, label in LINE.items():
            if name in logs:
                parts.append(f"{label} {logs[name]:.3f}")
        return " | ".join(parts)

    def why(self) -> str:
        """What takes longest and what would help; empty if that isn't known."""
        return advice(self.view.logs, self.setting) if self.setting else ""

    def render(self) -> Panel:
        """The whole picture, as high as the terminal where the phases can be cut short."""
        below = ["", *self._why(), self._statistics()]
        inner = self.console.options.update(width=max(1, self.console.width - 4))
        lines = sum(len(self.console.render_lines(part, inner)) for part in below)
        top = Table.grid(expand=True, padding=(0, 2))
        top.add_column(ratio=1)  # the only one that may wrap: 80 columns are common
        top.add_column()
        top.add_column()
        top.add_row(
            self._table("Run", self.view.facts().items()),
            self._phases(self.console.height - lines - FRAME),
            self._table("Losses", self.view.losses().items(), wrap=False),
        )
        return Panel(Group(top, *below), title="[bold]puffer_mlx[/]", border_style="cyan")

    def _why(self) -> list[RenderableType]:
        words = self.why()
        return [Text.assemble(("Why slow? ", "bold"), words)] if words else []

    def _statistics(self) -> Table:
        stats = Table(title="Environment (per finished episode)", title_justify="left")
        stats.box, stats.expand, stats.show_header = None, True, False
        for _ in range(3):
            stats.add_column(ratio=2, style="cyan")
            stats.add_column(ratio=1, justify="right")
        cells = [cell for pair in self.view.statistics().items() for cell in pair]
        for i in range(0, len(cells), 6):
            stats.add_row(*cells[i : i + 6])
        if not cells:
            stats.add_row("no episode has ended yet")
        return stats

    @staticmethod
    def _table(title: str, rows: Iterable[tuple[str, str]], wrap: bool = True) -> Table:
        table = Table(title=title, box=None, show_header=False, expand=wrap, title_justify="left")
        table.add_column(style="cyan", no_wrap=not wrap)
        table.add_column(justify="right", no_wrap=not wrap)
        for row in [*rows] or [("", "")]:  # without rows it would take all the room
            table.add_row(*row)
        return table

    def _phases(self, most: int) -> Table:
        rows = [
            (
                f"  {label}" if parent else f"[bold]{label}[/]",
                f"{seconds * 1000:5.0f} ms {100 * share:3.0f} %",
            )
            for label, parent, seconds, share in self.view.phases(most)
        ]
        return self._table("Time of an epoch", rows, wrap=False)
